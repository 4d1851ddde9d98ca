"""The errors of the platform, each named after what the caller has to do.

HeadwaterError
├── ConfigError            wrong use or configuration: fix it, then start again (exit code 2)
├── InvalidRecord          a record is not an event: it goes to the dead letters
├── UnknownFormat          a stored blob comes from a newer or foreign writer: upgrade the reader
├── LogMismatch            the topic is not the recorded incarnation: open an epoch, or repair it
├── StoreUnavailable       the store did not answer in time: back off, then try again
├── StoreRejected          the store answered "no" (read-only, disk full, bad value): look at it
├── EncoderUnavailable     the encoder did not answer in time: back off, then try again
├── EncoderRejected        the encoder answered "no", or its vectors are not usable
│   └── EncoderMismatch    its answer isn't what the view declares: change one of them
├── RecordTooLarge         the record exceeds what the topic takes: make it smaller
├── DeliveryFailed         the broker did not take a record in time: nothing was acknowledged
└── DeadLetterLimit        too large a share of records is bad: a person must look before it goes on
"""

from __future__ import annotations


class HeadwaterError(Exception):
    """Base of every error that the platform raises on purpose."""


class ConfigError(HeadwaterError):
    """Wrong use or configuration; the message says what to write instead."""


class InvalidRecord(HeadwaterError):
    """A record that is not an event. `reason` is one of `events.REASONS`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class UnknownFormat(HeadwaterError):
    """A stored blob starts with a format byte that this version doesn't know."""


class LogMismatch(HeadwaterError):
    """The topic differs from the incarnation that the store's log positions belong to (R2)."""


class StoreUnavailable(HeadwaterError):
    """The store is away or didn't answer in time; the same call may succeed later."""


class StoreRejected(HeadwaterError):
    """The store refused the statement; the same call will fail again until someone acts."""


class EncoderUnavailable(HeadwaterError):
    """The encoder is away or didn't answer in time; the same call may succeed later."""


class EncoderRejected(HeadwaterError):
    """The encoder refused the request, or returned vectors that must not be stored."""


class EncoderMismatch(EncoderRejected):
    """The encoder's answers have another shape than the view declares, whatever is asked."""


class RecordTooLarge(HeadwaterError):
    """The record is larger than the topic takes."""


class DeliveryFailed(HeadwaterError):
    """The broker didn't confirm a record within its delivery timeout."""


class DeadLetterLimit(HeadwaterError):
    """The share of dead letters passed its limit; the worker stops instead of emptying the log."""
