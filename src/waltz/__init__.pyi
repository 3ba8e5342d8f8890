"""The public names, and the module that each comes from; `waltz/__init__.py` loads by this list."""

from .attest.attested_log import AttestedLog
from .client.applying.blocked import BlockedPartition, OnApplyFailure
from .client.applying.callbacks import NoCallbacks, WaltzClientCallbacks
from .client.applying.transactions import Transactions
from .client.blocking_client import WaltzClient
from .client.bulk import RowColumns, lock_hashes
from .client.client_metrics import ClientMetrics, ClientPartitionMetrics
from .client.client_shell import AsyncWaltzClient
from .client.consistency_token import ConsistencyToken
from .client.databases.database_marks_shell import DatabaseMarks
from .client.databases.sql_callbacks import SqlCallbacks
from .client.lifecycle_events import (
    ClusterChanged,
    ConnectionRestored,
    LifecycleEvent,
    PartitionMounted,
    PartitionUnmounted,
    ServerConnected,
    ServerDisconnected,
)
from .client.notes_shell import ClusterNotes
from .client.token_middleware_shell import TokenMiddleware, give_token
from .client.transaction import (
    BytesSerializer,
    JsonSerializer,
    MsgpackSerializer,
    PartitionLocalLock,
    PlainAppend,
    Serializer,
    StringSerializer,
    Transaction,
    TransactionBuilder,
    TransactionContext,
)
from .cluster.histories import Histories
from .connections.retry import NoRetries, Operation, RetryAll, RetryPolicy, RetryReads
from .errors import (
    AlreadyClosedError,
    AttestationError,
    ClientAheadError,
    ClientClosedError,
    ClusterChangedError,
    ConfigurationError,
    ConnectionFailedError,
    ConnectionLostError,
    CoordinatorLostError,
    CorruptionError,
    HistoryChangedError,
    LocalProtocolError,
    NotFoundError,
    OperationTimeoutError,
    PartitionBlockedError,
    PartitionInactiveError,
    PartitionNotReadyError,
    PostponedError,
    RemoteProtocolError,
    SubmitCancelledError,
    UnavailableError,
    WaltzError,
)
from .figures import Durations
from .opening import (
    open_async_client,
    open_async_reader,
    open_attested,
    open_client,
    open_notes,
    open_reader,
    open_replicas,
    open_times,
)
from .operators.log_times_shell import LogTimes, TimeColumns, TransactionAt, TransactionTime
from .operators.questions_shell import ServerReport
from .operators.replicas_shell import Replica, ReplicaMarks, ReplicaReader
from .reader.blocking_reader import LogReader
from .reader.reader_shell import AsyncLogReader, WantsData
from .reader.transaction_columns import BlockData, TransactionColumns
from .types import (
    NOTHING,
    Address,
    ClientId,
    PartitionId,
    RequestId,
    TlsSettings,
    TransactionId,
    ZooKeeperAccess,
    ZooKeeperAcl,
    ZooKeeperAddress,
)

__all__ = [
    "NOTHING",
    "Address",
    "AlreadyClosedError",
    "AsyncLogReader",
    "AsyncWaltzClient",
    "AttestationError",
    "AttestedLog",
    "BlockData",
    "BlockedPartition",
    "BytesSerializer",
    "ClientAheadError",
    "ClientClosedError",
    "ClientId",
    "ClientMetrics",
    "ClientPartitionMetrics",
    "ClusterChanged",
    "ClusterChangedError",
    "ClusterNotes",
    "ConfigurationError",
    "ConnectionFailedError",
    "ConnectionLostError",
    "ConnectionRestored",
    "ConsistencyToken",
    "CoordinatorLostError",
    "CorruptionError",
    "DatabaseMarks",
    "Durations",
    "Histories",
    "HistoryChangedError",
    "JsonSerializer",
    "LifecycleEvent",
    "LocalProtocolError",
    "LogReader",
    "LogTimes",
    "MsgpackSerializer",
    "NoCallbacks",
    "NoRetries",
    "NotFoundError",
    "OnApplyFailure",
    "Operation",
    "OperationTimeoutError",
    "PartitionBlockedError",
    "PartitionId",
    "PartitionInactiveError",
    "PartitionLocalLock",
    "PartitionMounted",
    "PartitionNotReadyError",
    "PartitionUnmounted",
    "PlainAppend",
    "PostponedError",
    "RemoteProtocolError",
    "Replica",
    "ReplicaMarks",
    "ReplicaReader",
    "RequestId",
    "RetryAll",
    "RetryPolicy",
    "RetryReads",
    "RowColumns",
    "Serializer",
    "ServerConnected",
    "ServerDisconnected",
    "ServerReport",
    "SqlCallbacks",
    "StringSerializer",
    "SubmitCancelledError",
    "TimeColumns",
    "TlsSettings",
    "TokenMiddleware",
    "Transaction",
    "TransactionAt",
    "TransactionBuilder",
    "TransactionColumns",
    "TransactionContext",
    "TransactionId",
    "TransactionTime",
    "Transactions",
    "UnavailableError",
    "WaltzClient",
    "WaltzClientCallbacks",
    "WaltzError",
    "WantsData",
    "ZooKeeperAccess",
    "ZooKeeperAcl",
    "ZooKeeperAddress",
    "give_token",
    "lock_hashes",
    "open_async_client",
    "open_async_reader",
    "open_attested",
    "open_client",
    "open_notes",
    "open_reader",
    "open_replicas",
    "open_times",
]
