"""What a broker raises: a part of the contract whose rest is in `base`."""

from __future__ import annotations


class BrokerError(Exception):
    """Base of all errors that a broker raises. The text names the object, what was read and the way out."""

    #: Of several messages that were to be published, those that surely are, by their index.
    confirmed: frozenset[int] = frozenset()


class BrokerUsageError(BrokerError):
    """What was asked for cannot be used: the broker's URL, the namespace, or a name. Nothing was sent."""


class CredentialsUnusableError(BrokerUsageError):
    """Files that are needed to sign in or to encrypt are missing, contradict each other or cannot be read."""


class BrokerUnavailableError(BrokerError):
    """The broker could not be reached or did not answer. Trying again later may help."""


class BrokerRefusedError(BrokerError):
    """The broker answered and refused (password, ACL, wrong key type, memory). Trying again will not help
    until somebody changes something."""


class QueueUnusableError(BrokerRefusedError):
    """The broker lets us in, and what it has under the queue's names cannot be used: it belongs to another
    queue, or was made differently. Somebody has to change the queue, or use another one."""


class NotProvisionedError(QueueUnusableError):
    """The broker lets us in and has no such queue, or not all of it. `missing` says what, without the
    remedy, which is the text's end."""

    def __init__(self, missing: str, queue: str) -> None:
        super().__init__(f"{missing}; run: queueworker provision {queue}")
        self.missing = missing


class TakenBackTooSoonError(QueueUnusableError):
    """The broker hands work out again before a worker would renew it. `found` says so without the remedy;
    `wait` is what the broker keeps to and `expiry` what the worker does, in seconds."""

    def __init__(self, found: str, queue: str, wait: float, expiry: float) -> None:
        super().__init__(
            f"{found}; set QUEUEWORKER_EXPIRY_SECONDS to {wait:g} or less, or raise the ack wait: queueworker"
            f" provision {queue} --ack-wait {expiry:g} --update"
        )
        self.found = found
        self.wait = wait
        self.expiry = expiry


class BrokerFullError(BrokerRefusedError):
    """The broker takes no writes since it lacks room, in memory or on its disk. Nothing was done; it will be
    when somebody has made room."""


class UnsafePlacementError(BrokerError):
    """The keys of a namespace do not share one Redis Cluster slot. Raised before any work moves."""


class PayloadRefusedError(BrokerError):
    """A payload cannot be published: not JSON, or over the size limit."""

    #: Which of several payloads it is, from 0; -1 where there is only one.
    index: int = -1
