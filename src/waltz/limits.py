"""Bounds that several modules share, or that peers and operators see, with unit and reason.

A bound that one module alone uses stands in that module.
"""

from __future__ import annotations

from typing import Final

# Fixed by the formats: a peer or a disk that exceeds one of these is refused

FRAME_BYTES_MAX: Final = 32 * 1024 * 1024
"""Payload of one frame (CS-01). The original has no bound; a peer that exceeds ours is cut off."""

HELLO_BYTES_MAX: Final = 64 * 1024
"""Payload of a Hello frame, which is read before the peer has proved anything."""

DATA_BYTES_MAX: Final = 16 * 1024 * 1024
"""Data of one transaction: half a frame, so that any message with its header has room for it."""

LOCKS_MAX: Final = 10_000
"""Locks of one kind in one append request."""

TEXT_BYTES_MAX: Final = 1024 * 1024
"""Bytes of a text field, such as an error message."""

BATCH_APPENDS_MAX: Final = 10_000
"""Appends in one message."""

BATCH_LOCKS_MAX: Final = 100_000
"""Locks of all appends in one message; a lock takes about 100 bytes while it is checked."""

RECORD_LIST_RECORDS_MAX: Final = 10_000
"""Records in the answer to one record list request."""

RECORD_LIST_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of that answer: as many whole records as fit, and at least one."""

DAMAGED_RANGES_MAX: Final = 10_000
"""Damaged ranges in one answer about a replica's state; the server asks again for the ranges left
out once those it was told are repaired."""

REPORTS_MAX: Final = 256
"""Partitions in one report of a server."""

REPORT_REPLICAS_MAX: Final = 64
"""Replicas in the report on one partition; more are left out."""

REPORT_CHARACTERS_MAX: Final = 500
"""Characters of one text in the report on a partition."""

PARTITION_PROBLEMS_MAX: Final = 1_000
"""Problems of partitions in one answer of a server."""

PARTITION_PROBLEM_CHARACTERS_MAX: Final = 4_000
"""Characters of one problem in that answer."""

INDEX_CHECKPOINT_RECORDS: Final = 1_000
"""An index that reaches beyond a multiple of this proves that all records before that multiple were
durable, whichever implementation wrote the index."""

COORDINATOR_LINE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of one line between the embedded coordinator and a process."""

PARTITIONS_MAX: Final = 1_000_000
"""Partitions of one cluster: bounds the memory that metadata may make its reader allocate."""

METADATA_ENTRIES_MAX: Final = 100_000
"""Servers, storage nodes or replicas in one metadata value."""

# Settings of operators: their defaults, and the most that may be asked for

HANDSHAKE_SECONDS_MAX: Final = 10.0
"""server.handshakeTimeout, storage.handshakeTimeout: from the first moment of a connection until
its peer is known, with TLS, Hello and a storage node's open request. A Java process that has just
started on a busy machine needs more than 5 s; the original waits 10 s for TLS and without limit
for the rest."""

HANDSHAKE_SECONDS_LIMIT: Final = 300.0
"""The most that handshakeTimeout may be: a silent peer holds a connection for that long."""

CONNECTION_RESTORE_SECONDS: Final = 10.0
"""server.connectionRestoreTimeout: how long a server keeps a logical connection that is broken."""

IDLE_SECONDS_MAX: Final = 30.0
"""server.idleTimeout: how long a client of version 5 may be silent before it is cut off."""

LOCK_TABLE_SLOTS: Final = 30_000
"""server.optimisticLockTableSize: slots that a lock table begins with."""

FEED_FETCH_MIN: Final = 100
"""server.minFetchSize: transactions that a feed request always grants."""

FEED_CACHE_BYTES: Final = 64 * 1024 * 1024
"""server.feedCacheSize: recent records kept per server, headers and bodies together."""

CHECKPOINT_TRANSACTIONS: Final = 250_000
"""storage.checkpointInterval: transactions after which a new store session starts."""

RETRY_SECONDS_MIN: Final = 0.1
"""storage.initialRetryInterval: the first pause before a store session or another lost task is
tried again."""

RETRY_SECONDS_MAX: Final = 20.0
"""storage.maxRetryInterval: the longest such pause."""

SEGMENT_BYTES_THRESHOLD: Final = 1_000_000_000
"""storage.segment.size.threshold: a segment at or above this size is complete."""

SEGMENTS_OPEN_MAX: Final = 5
"""storage.segment.cache.capacity: complete segments kept open, per partition."""

DISK_FREE_PERCENT_MIN: Final = 5.0
"""storage.diskFreeMin: a node refuses appends while less than this share of the disk is free, or
less than DISK_FREE_BYTES_MIN, whichever is smaller."""

DISK_FREE_BYTES_MIN: Final = 10 * 1024**3
"""storage.diskFreeMin: the other of its two bounds."""

SCRUB_BYTES_PER_SECOND: Final = 20 * 1024**2
"""storage.scrub.bytesPerSecond: 1 GiB within a minute, for a few percent of a processor."""

SCRUB_INTERVAL_SECONDS: Final = 24 * 3600.0
"""storage.scrub.interval: between the end of a pass over all partitions and the next pass."""

LONG_WAIT_SECONDS: Final = 5.0
"""client.longWaitThreshold: a partition whose newest append waits longer is flushed."""

SHUTDOWN_SECONDS_MAX: Final = 30.0
"""storage.shutdownTimeout: how long a process may take to stop."""

SHUTDOWN_SECONDS_LIMIT: Final = 3600.0
"""The most that shutdownTimeout may be; a value meant as milliseconds is above it."""

# Tuning: no promise depends on these

READ_BYTES_MAX: Final = 256 * 1024
"""Bytes taken from a socket in one read."""

WRITE_BUFFER_BYTES_HIGH: Final = 1024 * 1024
"""Unsent bytes of a connection above which its sender waits. The original's 32 KiB costs a thread
switch every few hundred transactions."""

WRITE_BUFFER_BYTES_LOW: Final = 256 * 1024
"""Unsent bytes at which the sender resumes."""

CONNECTION_UNSENT_BYTES_MAX: Final = (
    WRITE_BUFFER_BYTES_HIGH + WRITE_BUFFER_BYTES_HIGH + 2 * DATA_BYTES_MAX + 1024 * 1024
)
"""The most that a server holds for a client that reads nothing. Above WRITE_BUFFER_BYTES_HIGH
nothing is added; one step of one partition may pass that mark: with data up to the mark and one
transaction's data beyond, a run of the feed, which may be one transaction's data, and short
answers."""

CONNECTIONS_BYTES_MAX: Final = 1024**3
"""Bytes held for all accepted connections of a process: received and not decoded, decoded and not
worked off, written and not sent. Above it the connections that hold most are closed. Some dozens of
connections within their own bounds reach it together."""

KEEP_ALIVE_SECONDS: Final = 600.0
"""Write idleness after which the connecting side sends an empty frame, as the original does."""

CONNECT_SECONDS_MAX: Final = 10.0
"""Time limit for opening one TCP connection."""

HANDSHAKE_ATTEMPTS_MAX: Final = 3
"""Versions that a client proposes on one connection."""

HEARTBEATS_PER_IDLE_TIME: Final = 3
"""Heartbeats that a client sends within the idle timeout."""

TIMER_SECONDS_MIN: Final = 0.001
"""The shortest timer: a clock may be slower than the timers that its readers arm."""

BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of one append to the replicas, unless a single record is larger."""

BATCHES_IN_FLIGHT_MAX: Final = 4
"""Batches that a store session sends ahead of the first unanswered one."""

CATCH_UP_RECORDS_MAX: Final = 1_000
"""Records per request that brings a replica up to date (the original: 20)."""

CATCH_UP_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes per request that brings a replica up to date."""

INDEX_SYNC_RECORDS: Final = 64_000
"""The index is synced at every multiple of this, itself a multiple of INDEX_CHECKPOINT_RECORDS. A
sync at every 1,000 records took 35 to 45 % of large drains; index entries lost in a power cut are
found again in the data, at about a microsecond per record."""

INDEX_SYNC_BYTES: Final = 64 * 1024 * 1024
"""The index is also synced after this many bytes of records: after a power cut, opening a partition
reads about as much."""

OPEN_CHECK_RECORDS: Final = 1_000
"""This many of the newest records are read at every open, whatever the index proves."""

OPEN_CHECK_BYTES: Final = 4 * 1024 * 1024
"""The most bytes of records that are read for that reason."""

DRAIN_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of appends joined into one write and one sync."""

SPACE_RESERVE_BYTES: Final = 16 * 1024**2
"""Kept allocated in each storage directory and released when other programs have filled the disk:
for index entries, marks, truncation and repair."""

METADATA_RETRY_SECONDS_MIN: Final = 0.1
"""The first pause before metadata is written to the coordinator again."""

METADATA_RETRY_SECONDS_MAX: Final = 1.0
"""The longest such pause."""

STORAGE_REQUEST_SECONDS_MAX: Final = 10.0
"""After this long without an answer a storage node is lost to the session (hazard R6)."""

READ_SECONDS_MAX: Final = 10.0
"""A read of committed records that no replica has answered in this time fails."""

OBSTACLE_SECONDS: Final = 10.0
"""Interval at which a server logs why one of its partitions takes no appends."""

SMALL_BYTES_MAX: Final = 16 * 1024
"""A client's message, and a batch, up to this size counts as small."""

REQUEST_BYTES: Final = 512
"""Memory of one request in a server, besides its data and locks."""

BATCHED_APPEND_BYTES: Final = 200
"""Memory of one append that came in a batch, besides its data and locks."""

LOCK_BYTES: Final = 40
"""Memory of one lock of a waiting request."""

FEED_RUN_RECORDS_MAX: Final = 4_000
"""Transactions sent to one client before the next client has its turn."""

CONNECTIVITY_SECONDS_MAX: Final = 5.0
"""A check of the storage nodes waits at most this long for a node that is not connected."""

SERVER_MAILBOX_EVENTS_MAX: Final = 10_000
"""Events that wait for one partition of a server."""

CLIENT_MAILBOX_EVENTS_MAX: Final = 10_000
"""Events that wait for one partition of a client."""

MOUNT_SECONDS_MAX: Final = 10.0
"""A submit fails if its partition is not mounted after this time."""

NOT_READY_SECONDS_MIN: Final = 0.02
"""The first pause between a NOT_READY answer and the next mount: a partition that moves is open
again after tens of milliseconds."""

NOT_READY_SECONDS_MAX: Final = 0.5
"""The longest such pause, as long as the original's."""

DENIED_SECONDS: Final = 60.0
"""Until a client asks again for a mount that a server's policy denies: a policy changes when a
person changes it."""

RECONNECT_SECONDS_MIN: Final = 0.05
"""The first pause before a lost server is connected to again."""

RECONNECT_SECONDS_MAX: Final = 5.0
"""The longest such pause."""

RECONNECT_BROKEN_SECONDS_MAX: Final = 0.25
"""The longest such pause for a server that had greeted: it is there, and its partitions wait."""

CLIENT_AHEAD_SECONDS: Final = 35.0
"""A client believes that it is ahead of the log once servers have said so for this time: longer
than a ZooKeeper session, so that a server which lost the partition unawares has noticed."""

APPLY_RETRY_SECONDS_MIN: Final = 0.01
"""The first pause after a callback raised (PM-38)."""

APPLY_RETRY_SECONDS_MAX: Final = 10.0
"""The longest pause after a callback raised."""

APPLY_TRANSACTIONS_MAX: Final = 1_000
"""Transactions handed to one call of `apply_transactions`."""

CLIENT_CLOSE_SECONDS: Final = 10.0
"""Closing a client waits at most this long for callbacks that are running."""

READER_SECONDS_MAX: Final = 30.0
"""A reader fails after this time without progress, through lost servers and moved partitions."""

READER_FETCH_ROWS_MAX: Final = 1_000
"""Rows whose data a reader asks for in one request."""

READER_BLOCK_ROWS_MAX: Final = 8_000
"""Rows that a reader asks for in one block."""

READER_BLOCK_BYTES_MAX: Final = 4096 * 1024
"""Bytes that a reader asks for in one block."""

READER_FETCHES_IN_FLIGHT_MAX: Final = 4
"""Requests that a reader sends ahead of the rows that it has yielded."""

CONNECTION_SECONDS_MAX: Final = 10.0
"""Opening a client fails if none of the given servers has answered in this time."""

REFRESH_SECONDS: Final = 30.0
"""Interval at which a client asks, by names resolved anew, a server that it is not connected to:
that server may know what the connected ones do not."""

COORDINATOR_SESSION_SECONDS: Final = 10.0
"""A process that the coordinator has not heard from for this long loses its ephemeral nodes."""

COORDINATOR_GRACE_SECONDS: Final = 1.0
"""From the end of a connection to the end of its session: time for a live process to return."""

COORDINATOR_CALL_SECONDS_MAX: Final = 5.0
"""A call waits at most this long for a coordinator that cannot be reached."""

COORDINATOR_RETRY_SECONDS_MIN: Final = 0.05
"""The first pause before the coordinator is tried again."""

COORDINATOR_RETRY_SECONDS_MAX: Final = 2.0
"""The longest such pause."""

GROWTH_LOOK_SECONDS: Final = 1.0
"""Interval at which a storage node asks the coordinator for the number of partitions."""

WORKER_THREADS_MAX: Final = 32
"""Blocking calls of a process at a time, mostly disk syncs."""

NOTE_TEXT_BYTES_MAX: Final = 255
"""UTF-8 bytes of each text of a client's note in a journal; a longer text is cut."""

HOLD_SECONDS_MAX: Final = 0.05
"""A server holds back what it knows of further commits for at most this long, and refuses a longer
hold: appends take longer by as much."""

HOLD_PAUSE_SECONDS: Final = 1.0
"""Between the beginnings of two holds of a partition, so that holds take at most 5 % of the time,
however many tools ask for them."""
