"""Configuration: typed settings from defaults, a YAML file, the environment and the command line."""
