"""The custom example job, with a data set that kills its process after a given number of items."""

import dataclasses
import os
import signal

from jobs import sentiment


class Deadly:
    """Kills this process when asked for one more item than `lives`."""

    def __init__(self, dataset, *, lives):
        self._dataset = dataset
        self._lives = lives

    def __len__(self):
        return len(self._dataset)

    def __getitem__(self, index):
        if self._lives == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._lives -= 1
        return self._dataset[index]


def job(settings):
    """Options: `lives`, the items to live through."""
    lives = settings.job.options["lives"]
    return dataclasses.replace(
        sentiment.job, dataset=lambda: Deadly(sentiment.build_dataset(), lives=lives), until=settings.training.steps
    )
