"""Every bound and default, with unit and reason. A number that bounds anything lives here."""

from __future__ import annotations

from typing import Final

# Frames and fields

FRAME_BYTES_MAX: Final = 32 * 1024 * 1024
"""Payload of one frame (CS-01). The original has no bound; a peer that exceeds it is cut off."""

HELLO_BYTES_MAX: Final = 64 * 1024
"""Payload of a Hello frame: nobody has proved anything yet."""

HELLO_VERSIONS_MAX: Final = 1024

DATA_BYTES_MAX: Final = 16 * 1024 * 1024
"""Data of one transaction: half a frame, so that one always fits in any message with its header."""

LOCKS_MAX: Final = 10_000
"""Locks of one kind in one append request."""

TEXT_BYTES_MAX: Final = 1024 * 1024
"""A text field: error messages, metrics."""

STACK_FRAMES_MAX: Final = 1_000
"""Stack frames in one failure response; our own have none."""

READ_BYTES_MAX: Final = 256 * 1024
"""Taken from a socket in one read."""

RECEIVED_PIECES_MAX: Final = 64
"""Of what has arrived and was not read; more are joined, for a piece may be one byte, which costs
fifty."""

PIECE_BYTES_MIN: Final = 4 * 1024
"""Of a frame that comes in pieces, larger ones are kept as they come, until all are joined."""

WHOLE_WRITE_BYTES_MIN: Final = 64 * 1024
"""What is as large goes to the system as it is; smaller ones of one turn are joined before."""

WRITE_BUFFER_BYTES_HIGH: Final = 1024 * 1024
"""Unsent bytes above which a sender waits; the original's 32 KiB costs a switch every few hundred
transactions."""

WRITE_BUFFER_BYTES_LOW: Final = 256 * 1024

KEEP_ALIVE_SECONDS: Final = 600.0
"""Write idleness after which the connecting side sends an empty frame, as the original does."""

PROBE_AFTER_SECONDS: Final = 20
PROBE_INTERVAL_SECONDS: Final = 10
PROBES_MAX: Final = 4
"""A silent peer is probed after the first, again after each second; a machine that answers none is
gone within a minute. Until then its client's newer connection may have to wait (hazard H5)."""

UNACKNOWLEDGED_SECONDS_MAX: Final = 30.0
UNACKNOWLEDGED_LOOK_SECONDS: Final = 5.0
"""A peer that acknowledges nothing of what was sent for so long is gone, too; probes wait for what
was sent, which the system repeats for a quarter of an hour, up to two minutes apart. The second is
how often it is looked at."""

CONNECT_SECONDS_MAX: Final = 10.0

HANDSHAKE_SECONDS_MAX: Final = 10.0
"""From the first moment of a connection until its peer is known: TLS, Hello, and a storage node's
open request (server.handshakeTimeout, storage.handshakeTimeout). A Java process that has just
started on a busy machine needs more than five; the original waits 10 s for TLS and for ever for the
rest."""

HANDSHAKE_SECONDS_LIMIT: Final = 300.0
"""The most that may be asked for: a peer that says nothing holds a connection for so long."""

TLS_TRIED_MAX: Final = 1_000
"""Addresses that a process tries TLS with because they have closed on a plain Hello."""

HANDSHAKE_SPREAD: Final = 0.2
"""The share by which that is less for some, so that those who came together do not go together."""

CONNECTIONS_MAX: Final = 20_000
CONNECTIONS_DESCRIPTORS_SHARE: Final = 0.6
"""Accepted connections of one process, within this share of the descriptors it may have: files need
the others."""

CONNECTIONS_WAITING_MAX: Final = 1_024
"""Connections that the system has made and the process has not accepted yet. With more of them some
look open to their peers and to nobody else."""

CONNECTIONS_PER_PEER_MAX: Final = 1_000
CONNECTIONS_PER_PEER_SHARE: Final = 0.25
"""Of these from one address, within this share of the connections that the process accepts."""

CONNECTIONS_BYTES_MAX: Final = 1024**3
"""What all accepted connections of a process hold: received and not decoded, decoded and not worked
off, written and not sent. Beyond it those that hold most are ended. The bounds of one connection
let some dozens of them come so far together."""

CONNECTIONS_BYTES_LEFT: Final = 0.9
"""Of it what is left to the others once some were ended."""

CONNECTION_BYTES_STEP: Final = 16 * 1024
"""A connection that holds less is not counted there, nor is a change by less: most never hold so
much, and counting costs."""

UNWEIGHED_BYTES_MAX: Final = 1024
"""Received between two looks at what a connection holds: a look costs as much as a few bytes."""

WANTED_BYTES_MAX: Final = 64
"""The most that a reader waits for at a time: less than anything whole is of no use to it, and who
sends a byte now and then is still heard now and then."""

PEER_LINES_MAX: Final = 20
PEER_LINES_SECONDS: Final = 60.0
"""Of log lines about peers that are refused, fall silent or break the protocol so many are written
per event and period; then one says how many were left out."""

TLS_VERDICT_SECONDS_MAX: Final = 1.0
"""In TLS 1.3 the connecting side is done before its certificate was judged: how long it waits for
the next word of the other side, which a refusal would be."""

TLS_LOOK_SECONDS: Final = 1.0
"""Between two looks whether certificate files have changed."""

TLS_FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of one file of certificates or keys; the system's own list of CAs has a quarter of a MiB."""

TLS_SELF_SIGNED_DAYS: Final = 3650
"""How long a pair that is made at a start is valid; nobody verifies it."""

TLS_TRIAL_DAYS: Final = 365
"""How long the certificates of `waltz up --tls` are valid; each start makes new ones."""

# Logical connections

EXTENSIONS_MAX: Final = 100
EXTENSION_BYTES_MAX: Final = 16 * 1024
"""Of one handshake message, which fits into HELLO_BYTES_MAX as a whole."""

FEATURE_BYTES_MAX: Final = 1024

HANDSHAKE_ATTEMPTS_MAX: Final = 3
"""Versions that a client proposes on one connection."""

CONNECTION_RESTORE_SECONDS: Final = 10.0
"""server.connectionRestoreTimeout: how long a server keeps a logical connection that is broken."""

IDLE_SECONDS_MAX: Final = 30.0
"""server.idleTimeout: a client of version 5 that says nothing for so long is cut off."""

LOGICAL_SECONDS_LIMIT: Final = 3600.0
"""The most that may be asked for as either; a figure meant as milliseconds is above it."""

HEARTBEATS_PER_IDLE_TIME: Final = 3
"""So many heartbeats fit into the idle time-out."""

HEARTBEAT_TIMEOUT_FACTOR: Final = 2
"""Times the interval between heartbeats in which a live peer has answered one."""

TIMER_SECONDS_MIN: Final = 0.001
"""No timer is armed for less: a clock may be slower than the timers that it is looked at with."""

RETAINED_BYTES_MAX: Final = 4 * 1024 * 1024
RETAINED_WRITES_MAX: Final = 10_000
"""What one end of a logical connection keeps of what was sent and not acknowledged."""

ACKNOWLEDGE_BYTES: Final = 256 * 1024
"""So much arrives between two acknowledgements; heartbeats acknowledge, too."""

BROKEN_CONNECTIONS_MAX: Final = 1_000
BROKEN_BYTES_MAX: Final = 256 * 1024 * 1024
"""Logical connections that a server keeps without a TCP connection, and what they hold together."""

# Batches

BATCH_RECORDS_MAX: Final = 4_000
"""Records of one append to the replicas (storage.maxBatchSize; the original: 100)."""

BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of one append to the replicas, unless a single record is larger."""

BATCHES_IN_FLIGHT_MAX: Final = 4
"""Batches that a store session sends ahead of the first unanswered one."""

CATCH_UP_RECORDS_MAX: Final = 1_000
CATCH_UP_BYTES_MAX: Final = 4 * 1024 * 1024
"""What a replica behind is sent at a time (the original: 20 records)."""

RECENT_BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Committed batches that a store session remembers for replicas that lag a little; those in flight
come on top."""

RECORD_LIST_RECORDS_MAX: Final = 10_000
RECORD_LIST_BYTES_MAX: Final = 8 * 1024 * 1024
"""Answer to one record list request: as many whole records as fit, at least one."""

HEADER_READ_BYTES: Final = 512 * 1024
"""Read at a time from a segment of which headers are wanted: it stays in a processor's cache until
it is checked."""

DAMAGED_RANGES_MAX: Final = 10_000
"""Damaged ranges in one answer about a replica's state; what is left out is asked for again once
these are repaired."""

BULK_BATCH_ROWS_MAX: Final = 4_000
BULK_BATCH_BYTES_MAX: Final = 1024 * 1024
"""One message of `append_many`: what a store session sends to the replicas at a time."""

CLIENT_BATCHES_IN_FLIGHT_MAX: Final = 2
"""Batches of contexts that a client has undecided in one partition at a time."""

SEQUENCE_NUMBERS_PER_CLIENT_ID: Final = 2**31 - 2**16
"""The last sequence number that a client gives to an append of a partition. Above it are those of
mounts that come while a client waits for its next client ID."""

CLIENT_ID_RENEWAL_SHARE: Final = 31 / 32
"""Of these numbers, how many a partition has used up when its client asks for its next client ID:
at 100,000 appends per second 11 minutes before the last."""

BULK_ROWS_IN_FLIGHT_MAX: Final = 16_000
BULK_BYTES_IN_FLIGHT_MAX: Final = 3 * 1024 * 1024
"""What a client sends ahead of the first undecided append of a partition; below what is kept for a
connection that breaks."""

BULK_LOCKED_ROWS_IN_FLIGHT_MAX: Final = 2_000
"""The same towards servers of older versions, for rows with locks that are checked, those in the
log and not applied included: by chance one in two hundred meets another in a lock table of 30,000
slots, and with four times as many, one in six. From version 5 on the table grows with them."""

BULK_RETRY_SECONDS: Final = 0.05
"""Until rows are sent again that a server refuses for other reasons than their locks."""

BATCH_APPENDS_MAX: Final = 10_000
BATCH_LOCKS_MAX: Final = 100_000
"""Appends of one message and their locks; a lock takes about 100 bytes while it is checked."""

# Storage node

SEGMENT_BYTES_THRESHOLD: Final = 1_000_000_000
"""storage.segment.size.threshold: a segment above it is complete."""

SEGMENTS_OPEN_MAX: Final = 5
"""storage.segment.cache.capacity: complete segments kept open, per partition."""

SEGMENTS_OPEN_LIMIT: Final = 10_000
"""The most that may be asked for: each takes two file descriptors."""

INDEX_CHECKPOINT_RECORDS: Final = 1_000
"""Fixed by the on-disk format: an index that reaches beyond a multiple proves that all records
before it were durable, whoever wrote it."""

INDEX_SYNC_RECORDS: Final = 64_000
"""The index is synced at every multiple, a multiple of the one before. At every thousand the sync
took 35 to 45 % of large drains; what a power cut takes from the index is found again in the data,
at about a microsecond per record."""

INDEX_SYNC_BYTES: Final = 64 * 1024 * 1024
"""The index is synced too once so many bytes of records were: after a power cut about so much is
read before a partition opens."""

OPEN_CHECK_RECORDS: Final = 1_000
OPEN_CHECK_BYTES: Final = 4 * 1024 * 1024
"""Of the newest records so many are read at every opening, whatever the index proves."""

PREALLOCATED_BYTES_MIN: Final = 1024 * 1024
PREALLOCATED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Reserved ahead of the end of a data file, a quarter of its size within these two: a sync that
finds its blocks allocated takes 20 to 35 % less time."""

INDEX_PREALLOCATED_BYTES: Final = 8 * 64_000
"""The same for an index file: as much as is written between two syncs."""

STORAGE_MAILBOX_REQUESTS_MAX: Final = 1_000
"""Requests that wait for one partition before its connections are no longer read."""

DRAIN_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of appends joined into one write and one sync."""

DISK_FREE_PERCENT_MIN: Final = 5.0
DISK_FREE_BYTES_MIN: Final = 10 * 1024**3
"""storage.diskFreeMin: a node takes no appends with less free than the smaller of the two."""

DISK_FREE_BYTES_LEAST: Final = 1024**2
"""The least that may be asked for; what was meant as a percentage is below it."""

DISK_FREE_BYTES_TRIAL: Final = 64 * 1024**2
"""The same for the clusters of `waltz up`, which live on people's own machines."""

SPACE_LOW_FACTOR: Final = 2
"""Times the minimum below which the operator is warned."""

SPACE_RETURN_FACTOR: Final = 1.1
"""Times a threshold that has to be free again for the state below it to end."""

SPACE_READING_SECONDS: Final = 1.0
"""Between two looks at the file system; what is let through meanwhile is counted."""

SPACE_HOLD_SECONDS: Final = 5.0
"""How long a file system that a write has found full counts as full, whatever it says."""

SPACE_RESERVE_BYTES: Final = 16 * 1024**2
"""Kept allocated in each storage directory and given back when others have filled the disk: for
index entries, marks, truncation and repair."""

SPACE_REOPEN_BYTES: Final = 1024**2
"""What has to be free for a writer that found no space to be opened again: for its index."""

FINDINGS_KEPT_MAX: Final = 100
"""Of one look at files, named one by one; all are counted (the original: 100)."""

SCRUB_BYTES_PER_SECOND: Final = 20 * 1024**2
"""storage.scrub.bytesPerSecond: 1 GiB within a minute, for a few percent of a core."""

SCRUB_BYTES_PER_SECOND_LEAST: Final = 64 * 1024
"""The least that may be asked for: 100 GiB take three weeks."""

SCRUB_INTERVAL_SECONDS: Final = 24 * 3600.0
"""storage.scrub.interval: between the end of a pass over all partitions and the next."""

SCRUB_SLICE_BYTES_MIN: Final = 64 * 1024
SCRUB_SLICE_BYTES_MAX: Final = 256 * 1024
SCRUB_SLICE_SECONDS_MAX: Final = 0.001
"""Read at a time: within these two as much as takes about so long, for appends that come meanwhile
wait for it, and small records take long."""

SCRUB_TURN_BYTES_MAX: Final = 1024 * 1024
"""Read in one turn of a partition as long as nothing waits for it: turns cost more than slices."""

SCRUB_SHARE_MAX: Final = 0.1
"""Of the time, however slow the records are to check."""

SCRUB_PATIENCE_SECONDS: Final = 0.05
"""How long a slice that is due waits for a partition that is not busy."""

SCRUB_LAG_SECONDS_MAX: Final = 1.0
"""So much of the budget that was not used can be made up for."""

SCRUB_START_SECONDS: Final = 60.0
"""From the start of a node to its first pass: others wait for it to come back."""

SCRUB_LOOK_SECONDS: Final = 5.0
"""Between two looks for new damage while no pass is under way."""

# Store sessions

RETRY_SECONDS_MIN: Final = 0.1
RETRY_SECONDS_MAX: Final = 20.0
"""storage.initialRetryInterval, storage.maxRetryInterval: store sessions, and others."""

STORAGE_RECONNECT_SECONDS_MAX: Final = 1.0
"""The most between two attempts to reach a storage node that somebody waits for. One that is back
and not noticed is one that must not be missed: the next one lost takes the majority with it."""

METADATA_RETRY_SECONDS_MIN: Final = 0.1
METADATA_RETRY_SECONDS_MAX: Final = 1.0

STORAGE_ANSWER_SECONDS: Final = 1.0
"""A storage node that has answered so lately need not be asked whether it is reached."""

STORAGE_REQUEST_SECONDS_MAX: Final = 10.0
"""A storage node that has not answered by then is lost to the session (hazard R6)."""

READ_SECONDS_MAX: Final = 10.0
"""How long a read of committed records looks for a replica that answers."""

READ_HEDGE_FACTOR: Final = 4.0
READ_HEDGE_SECONDS_MIN: Final = 0.02
READ_HEDGE_SECONDS_MAX: Final = 1.0
"""A replica that has not answered after so many times its smoothed latency, within these bounds, is
not waited for alone: another one is asked as well."""

READ_LOOK_SECONDS: Final = 0.1
"""Between two looks for a replica to read from while there is none."""

UNREADABLE_SECONDS: Final = 3.0
"""For how long a server does not ask again for a record that no replica could give; longer than
READ_AVOID_SECONDS, so that all are asked anew then."""

READ_AVOID_SECONDS: Final = 2.0
READ_LACKS_MAX: Final = 1_000
"""For how long a replica is not asked again for a record that it could not read, and how many such
records are remembered per partition."""

OBSTACLE_SECONDS: Final = 10.0
"""How often a server says why one of its partitions takes no appends."""

PARTITION_PROBLEMS_MAX: Final = 1_000
PARTITION_PROBLEM_CHARACTERS_MAX: Final = 4_000
"""What a server that is asked says of them at a time, and how much of each."""

MEMBER_CHANGE_SECONDS_MAX: Final = 10.0
"""How long a session with other replicas may take to open, before the last ones go on instead."""

MEMBER_CHANGE_PAUSE_SECONDS: Final = 60.0
"""Between a change of replicas that did not succeed and the next attempt."""

MEMBER_FILL_SECONDS_MAX: Final = 2.0
"""New replicas that were filled up in about so short a time have little to copy when they take
over, for appends wait meanwhile; otherwise they are filled up once more."""

REPAIR_LOOK_SECONDS: Final = 5.0
"""Between two questions to a replica what it has damaged, while a store session is open."""

REPAIR_LOOK_SECONDS_MIN: Final = 1.0
"""The same when reads fail there: they may fail for other reasons, and for good."""

REPLICA_WORD_SECONDS_MAX: Final = 15.0
"""How old what a replica said of itself may be to be believed by `/health` and `/metrics`: three
times the pause between two looks at it (REPAIR_LOOK_SECONDS)."""

REPLICA_LOOK_SECONDS_MAX: Final = 2.0
"""How long a server waits for what replicas say when a tool asks."""

REPLICA_LOOK_SECONDS_MIN: Final = 0.2
"""From the beginning of a look at the replicas of a partition, which a tool has asked for, to the
next."""

COORDINATOR_CHECK_SECONDS: Final = 3.0
"""Between two questions of a server whether the coordinator is there."""

COORDINATOR_SILENT_SECONDS_MAX: Final = 10.0
"""A server whose coordinator has not answered for so long says that it has lost the coordinator."""

REPORTS_MAX: Final = 256
"""Partitions that a server reports on at a time."""

REPORT_REPLICAS_MAX: Final = 64
REPORT_CHARACTERS_MAX: Final = 500
"""Replicas, and characters of a text, in a report on a partition; more are left out."""

REPAIR_BYTES_MAX: Final = 1024 * 1024
REPAIR_PAUSE_SECONDS: Final = 0.05
"""Put back in one replica at a time, unless a single record is larger, and the pause before the
next: about 20 MiB/s, and an append waits for one such batch at most."""

CHECKPOINT_TRANSACTIONS: Final = 250_000
"""storage.checkpointInterval: transactions after which a new store session starts."""

PENDING_APPENDS_MAX: Final = 10_000
PENDING_APPEND_BYTES_MAX: Final = 64 * 1024 * 1024
"""Requests that one partition of a server has not worked off before it is full: connections with
more than their share of them are read no further."""

PARTITION_SHARE_BYTES: Final = 64 * 1024
"""What each connection may have under way in a partition even if that is full."""

CROWDED_BYTES_MIN: Final = 256 * 1024
"""What all clients of a server have under way from which on small appends do not wait for a turn of
the loop at each step of their way. Below, turns are short, and waiting makes batches of them."""

SMALL_BYTES_MAX: Final = 16 * 1024
"""What a client sends at a time, and a batch, that is small in this sense."""

CONNECTION_BACKLOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""Requests of one connection that a server has not worked off before it reads no further; what one
more read brings comes on top. As much as a partition's batches in flight hold."""

REQUEST_BYTES: Final = 512
"""What a request takes in a server besides its data and locks."""

BATCHED_APPEND_BYTES: Final = 200
"""The same for an append that came in a batch."""

LOCK_BYTES: Final = 40
"""What a lock of a waiting request takes."""

# Server

LOCK_TABLE_SLOTS: Final = 30_000
"""server.optimisticLockTableSize: how many a lock table begins with."""

LOCK_TABLE_SLOTS_PER_CLAIM: Final = 64
LOCK_TABLE_SLOTS_MAX: Final = 1 << 20
"""For each undecided lock so many slots, by doubling their number, unless they would be more than
that: one lock in ten thousand is then refused by chance. A slot takes 32 bytes."""

FEED_FETCH_MIN: Final = 100
"""server.minFetchSize: transactions a feed request always grants."""

FEED_RUN_RECORDS_MAX: Final = 4_000
"""Transactions sent to one client before the next one has its turn."""

FEED_CACHE_BYTES: Final = 64 * 1024 * 1024
"""server.feedCacheSize: recent records kept per server, headers and bodies together."""

READ_AHEAD_RECORDS: Final = 512
READ_AHEAD_RECORDS_MAX: Final = 4_096
"""What a server fetches from a replica when one old transaction is asked for; twice as many each
time that what follows is asked for as well, up to the second."""

READ_AHEAD_HEADERS_MAX: Final = 8_000
"""The same where no data are wanted: two runs of a feed."""

READ_AHEAD_READS: Final = 2
"""Fetches that are under way for a reader who goes on and on, ahead of what it is given."""

FEED_RUNS_PER_STEP_MAX: Final = 16
"""Runs for clients far behind between two looks at what else has arrived."""

READS_IN_FLIGHT_MAX: Final = 4
"""Fetches of old records that one partition of a server has under way."""

OUTCOME_RECORDS_PER_STEP_MAX: Final = 10_000
OUTCOME_RECORDS_MAX: Final = 100_000
"""Records that are looked through for one append: in one step of its partition, and for one answer;
who is not answered yet asks again from there."""

MOUNTS_GONE_MAX: Final = 1_000
"""Clients that a partition remembers when their connection has ended: what that one has sent does
not count a second time, whoever sends it again."""

CONNECTIVITY_SECONDS_MAX: Final = 5.0
"""How long a check of the storage nodes waits for one that is not connected."""

SERVER_QUESTIONS_MAX: Final = 16
"""Questions of one connection to the server as a whole, not answered yet."""

RELEASE_SECONDS_MAX: Final = 5.0
"""How long a server that stops waits for its undecided appends."""

EARLY_MOUNT_SECONDS_MAX: Final = 1.0
"""How long a mount waits for a store session before it is answered with NOT_READY; one that opens
takes a fraction of it."""

SERVER_MAILBOX_EVENTS_MAX: Final = 10_000

CONNECTION_UNSENT_BYTES_MAX: Final = (
    WRITE_BUFFER_BYTES_HIGH + WRITE_BUFFER_BYTES_HIGH + 2 * DATA_BYTES_MAX + 1024 * 1024
)
"""The most that a server holds for a client that takes nothing: when the high mark is passed nobody
adds any more, and what passes it is one step of one partition: bodies up to the mark and one that
goes beyond, a run of the feed, which may be one body of its own, and short answers."""

# Client

TRANSACTIONS_PENDING_MAX: Final = 5
"""client.maxConcurrentTransactions: unfinished appends per partition; further submits wait."""

MOUNT_SECONDS_MAX: Final = 10.0
"""How long a submit waits for its partition to be mounted."""

REGISTRATION_SECONDS_MAX: Final = 10.0
"""How long a submit waits for room before the partition is flushed."""

LONG_WAIT_SECONDS: Final = 5.0
"""client.longWaitThreshold: a partition whose newest append waits longer is flushed."""

RETRY_THREADS: Final = 1
"""client.numTransactionRetryThreads."""

NOT_READY_SECONDS_MIN: Final = 0.02
NOT_READY_SECONDS_MAX: Final = 0.5
"""Between a NOT_READY answer and the next mount: short at first, for a partition that moves is open
again after some hundredths of a second, then as long as the original's pause."""

RECONNECT_SECONDS_MIN: Final = 0.05
RECONNECT_SECONDS_MAX: Final = 5.0
RECONNECT_BROKEN_SECONDS_MAX: Final = 0.25
"""The same for a server that had greeted: it is there, and its partitions wait."""

TRANSACTION_RETRY_SECONDS_MIN: Final = 0.001
TRANSACTION_RETRY_SECONDS_MAX: Final = 1.0
"""Back-off, with jitter, between attempts of one transaction context."""

APPLY_ATTEMPTS_MAX: Final = 5
"""After which a transaction is parked or its partition stopped, if that is the policy."""

BLOCKED_SECONDS_MAX: Final = 10.0
"""How long a flush waits for a partition whose next transaction cannot be applied."""

CLIENT_AHEAD_SECONDS: Final = 35.0
"""For how long a server has to say that a client is ahead of the log before it is believed: longer
than a ZooKeeper session, so that one which has lost the partition without knowing has lost it."""

APPLY_RETRY_SECONDS_MIN: Final = 0.01
APPLY_RETRY_SECONDS_MAX: Final = 10.0
"""Back-off after a callback raised (PM-38)."""

DATA_RETRY_SECONDS_MIN: Final = 0.01
DATA_RETRY_SECONDS_MAX: Final = 5.0
"""Back-off of a body fetch after a failure (PM-32)."""

APPLY_TRANSACTIONS_MAX: Final = 1_000
"""Transactions handed to one call of `apply_transactions`."""

FEED_BUFFER_TRANSACTIONS_MAX: Final = 10_000
"""Fed but not applied transactions per partition before a client asks for no more."""

FEED_BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Data that came along with these before a client reads no further."""

OUTCOME_RETRY_SECONDS: Final = 0.2
"""Until an outcome that nobody knows yet is asked for again."""

DATA_REQUESTS_IN_FLIGHT_MAX: Final = 256
"""Bodies requested ahead on one connection."""

CLIENT_MAILBOX_EVENTS_MAX: Final = 10_000

LOCK_NAMES_CACHED_MAX: Final = 10_000
"""Names of locks whose hash a client remembers."""

TRANSACTIONS_PENDING_LIMIT: Final = 100_000
"""The most that may be asked for as client.maxConcurrentTransactions."""

RETRIES_PER_CALL_MAX: Final = 100
"""Contexts that one retry thread executes again in one go."""

HIGH_WATER_MARK_REQUEST_SECONDS: Final = 2.0
"""Servers answer some high-water mark requests never (hazard H2): asked again after so long."""

READER_SECONDS_MAX: Final = 30.0
"""How long a reader waits for progress, through lost servers and moved partitions."""

READER_ROWS_MAX: Final = 10_000
READER_BYTES_MAX: Final = 16 * 1024 * 1024
"""What a reader yields at a time: at most so many rows, and no more once it has so many bytes."""

READER_FETCH_ROWS_MAX: Final = 1_000
READER_BLOCK_ROWS_MAX: Final = 8_000
READER_BLOCK_BYTES_MAX: Final = 4096 * 1024
READER_FETCHES_IN_FLIGHT_MAX: Final = 4
"""What a reader asks for at a time: the data of so many rows, or a block of so many rows and bytes;
and how many times ahead of what was yielded."""

READER_BLOCK_BYTES_AIM: Final = READER_BLOCK_BYTES_MAX * 3 // 4
"""A block is asked for with as many rows as have so many bytes, by the last one."""

CALLBACK_POLL_SECONDS_MIN: Final = 0.004
CALLBACK_POLL_SECONDS_MAX: Final = 0.02
"""Between two looks whether another process has applied a partition: a look costs every waiting
process about as much as applying a transaction."""

CALLBACK_PATIENCE_SECONDS: Final = 1.0
"""How long a process leaves a partition that it does not prefer to others."""

NOTE_BYTES_MAX: Final = 256 * 1024
"""One note that the coordinator keeps for an application; ZooKeeper takes 1 MiB in all."""

NOTE_SECONDS_MAX: Final = 60.0
"""How long reading or changing a note waits for the coordinator."""

CLIENT_CLOSE_SECONDS: Final = 10.0
"""How long closing a client waits for callbacks that are running."""

# Discovery

SERVER_ADDRESSES_MAX: Final = 16
"""Addresses under which one server may be reached."""

RESOLVE_SECONDS_MAX: Final = 5.0
"""How long a name may take to resolve; the system's own patience is longer."""

RESOLVER_THREADS_MAX: Final = 4
"""Names that a process resolves at a time; more wait, within that time."""

CONNECTION_SECONDS_MAX: Final = 10.0
"""How long opening a client waits until one of the given servers has answered."""

NODE_CONNECTION_SECONDS_MIN: Final = 0.5
"""The least of that time that each address gets, however many there are."""

OPERATION_SECONDS_MAX: Final = 60.0
"""How long a call that reads waits for a server, over all its attempts."""

REFRESH_SECONDS: Final = 30.0
"""Between two looks, by names resolved anew, at a server that this client has no connection to: it
may know what those that it has do not."""

TOPOLOGY_PUSH_SECONDS: Final = 0.1
"""Between two changes of the cluster that a server tells."""

RETRIES_MAX: Final = 16
"""Of an operation, unless the retry policy says otherwise (the referenced system's limit)."""

LISTENER_EVENTS_MAX: Final = 10_000
"""Events that wait for a slow listener; what comes then is not told."""

# Coordinator

COORDINATOR_SESSION_SECONDS: Final = 10.0
"""A process that the coordinator has not heard of for so long loses its ephemeral nodes."""

COORDINATOR_LINE_BYTES_MAX: Final = 8 * 1024 * 1024

COORDINATOR_GRACE_SECONDS: Final = 1.0
"""Between the end of a connection and the end of its session: time for a live process to return."""

COORDINATOR_CALL_SECONDS_MAX: Final = 5.0
"""How long a call waits for a coordinator that cannot be reached."""

COORDINATOR_RETRY_SECONDS_MIN: Final = 0.05
COORDINATOR_RETRY_SECONDS_MAX: Final = 2.0
"""Back-off between attempts to reach the coordinator."""

COORDINATOR_REQUESTS_MAX: Final = 10_000
"""Calls of one session that the embedded coordinator has not answered yet."""

COORDINATOR_SESSIONS_MAX: Final = 10_000
"""Processes that the embedded coordinator serves at a time."""

COORDINATOR_NODES_MAX: Final = 100_000
COORDINATOR_NODE_BYTES_MAX: Final = 1024 * 1024
"""Data of one node (ZooKeeper's default), and how many nodes a tree may have."""

COORDINATOR_PATH_CHARACTERS_MAX: Final = 1024

ZOOKEEPER_REQUEST_BYTES_MAX: Final = 1024 * 1024 - 1
"""ZooKeeper ends a connection that brings more (its default, `jute.maxbuffer`)."""

ZOOKEEPER_REQUEST_BYTES_OVERHEAD: Final = 1024
"""Of a request, besides data and path; more than it is."""

ZOOKEEPER_SESSION_MILLISECONDS: Final = 30_000
"""What the original's tools ask for."""

ZOOKEEPER_CONNECT_MILLISECONDS: Final = 10_000
"""How long the original's tools wait for a ZooKeeper that does not answer."""

ZOOKEEPER_CLOSE_SECONDS_MAX: Final = 1.0
"""How long closing waits for the end of the session; after that it ends by its time-out."""

ZOOKEEPER_START_SECONDS_MAX: Final = 30.0
ZOOKEEPER_STOP_SECONDS_MAX: Final = 10.0
"""How long a ZooKeeper of our own may take to serve, and to end."""

ZOOKEEPER_RESTART_SECONDS_MIN: Final = 0.2
ZOOKEEPER_RESTART_SECONDS_MAX: Final = 5.0
"""Pause before one that has ended is started again."""

PARTITIONS_MAX: Final = 1_000_000
"""Of one cluster; bounds what metadata may make a reader allocate."""

GROWTH_LOOK_SECONDS: Final = 1.0
"""Between two questions of a storage node to the coordinator, how many partitions there are."""

GROWTH_READ_SECONDS_MAX: Final = 3.0
"""For the answer to one; whoever waits for it is in a handshake."""

GROWTH_HOLD_SECONDS_MAX: Final = 1.0
"""How long a storage node that makes room for more partitions waits for those that are at work,
while those that are not wait for it."""

GROWTH_TAKEN_SECONDS_MAX: Final = 30.0
"""How long who adds partitions waits for a storage node to make room for them and to take them."""

GROWTH_SERVED_POLL_SECONDS: Final = 0.3
"""Between two questions to the servers, whether they serve the partitions that were added."""

METADATA_ENTRIES_MAX: Final = 100_000
"""Servers, storage nodes or replicas in one metadata value."""

# Host

TURN_STEPS_MAX: Final = 64
"""Steps of a machine for what its own steps bring about, before others of the loop have a turn."""

STEPS_AT_ONCE_MAX: Final = 4
"""Steps of a machine per turn of the loop for events that do not wait for their turn: what comes
beyond waits, and becomes one step."""

WORKER_THREADS_MAX: Final = 32
"""Blocking calls under way at a time, mostly disk syncs."""

CLOSE_SECONDS_MAX: Final = 5.0
"""How long a closed connection may still send what was queued."""

# Operating a process

COLLECT_AFTER: Final = (50_000, 20, 100)
"""Objects that come and do not go before a process of ours looks for cycles among them; and how
many times before it looks at older ones."""

CONFIGURATION_BYTES_MAX: Final = 1024 * 1024
CONFIGURATION_DEPTH_MAX: Final = 16
"""Of a configuration file, and of its nesting."""

SHUTDOWN_SECONDS_MAX: Final = 30.0
"""storage.shutdownTimeout: how long a process that was told to stop may take."""

SHUTDOWN_SECONDS_LIMIT: Final = 3600.0
"""The most that may be asked for; a figure meant as milliseconds is above it."""

HTTP_CONNECTIONS_MAX: Final = 64
"""Of one process, scrapers and probes, so that they never take the descriptors that files need.
With one more the connection is cut that has waited longest since its last answer."""

HTTP_IDLE_SECONDS_MAX: Final = 30.0
"""How long a connection may wait for its next request, or send none at all."""

HTTP_REQUEST_SECONDS_MAX: Final = 5.0
"""From the first byte of a request to the end of its answer."""

HTTP_HEAD_BYTES_MAX: Final = 16 * 1024
"""Request line and headers; nothing that is asked has a body."""

DISK_CALL_SECONDS_MAX: Final = 10.0
"""A disk call that has not returned by then makes its partition unhealthy: its servers have given
it up (STORAGE_REQUEST_SECONDS_MAX)."""


# Store sessions

SESSION_CLIMB: Final = 2**19
"""Session numbers that a server passes over when replicas have promised higher ones than the
coordinator knows: that it was set back can then be told from the numbers, also by the next server.
At most one session a second is opened in vain, so that failures alone take six days for that."""

SESSION_CLIMB_MAX: Final = 2**62
"""No climb ends above this number: half of all numbers are left for sessions opened in order."""

SESSION_STEP_MAX: Final = 2**20
"""While a storage node cannot ask the coordinator whether a session was given to a server, it takes
one at most this much above the highest that it has seen. More than a climb."""
