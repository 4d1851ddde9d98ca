"""One Kafka 4.1 broker that is its own KRaft controller."""

from __future__ import annotations

import subprocess
import uuid
from base64 import urlsafe_b64encode

from infra.local.java import class_path, java_command, java_environment
from infra.local.probes import kafka_answers
from infra.local.service import Service, ServiceFailed

MAX_MESSAGE_BYTES = 1 << 20
_HEAP_MIB = 512
_FORMAT_SECONDS = 90

_SERVER_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}

# The contract with clients.
auto.create.topics.enable=false
message.max.bytes={max_message_bytes}
log.message.timestamp.type=LogAppendTime
num.partitions=8
group.initial.rebalance.delay.ms=0

# One node: nothing is replicated, and internal topics stay small so that they load at once.
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
offsets.topic.segment.bytes=16777216
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
# After a crash, the new incarnation may register as soon as the old one's session is over.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500

# Bounds for two cores and a small heap (the cleaner's buffer alone would take 128 MiB of it).
num.network.threads=2
num.io.threads=4
background.threads=2
num.recovery.threads.per.data.dir=2
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=16777216
log.segment.bytes=134217728
log.index.size.max.bytes=1048576
log.retention.hours=168
"""

_LOG4J = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %-5p %c{1}: %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
# Each prints hundreds of lines at the start.
logger.config.name = org.apache.kafka.common.config.AbstractConfig
logger.config.level = warn
logger.serverconfig.name = kafka.server.KafkaConfig
logger.serverconfig.level = warn
logger.logconfig.name = org.apache.kafka.storage.internals.log.LogConfig
logger.logconfig.level = warn
"""


class KafkaService(Service):
    """The broker; topics are made by `headwater apply`, none by itself."""

    name = "kafka"

    @property
    def port(self) -> int:
        return self.plan.ports["kafka"]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        config, data = self.plan.home.config(self.name), self.plan.home.data(self.name)
        for folder in (config, data):
            folder.mkdir(parents=True, exist_ok=True)
        properties = _SERVER_PROPERTIES.format(
            port=self.port,
            controller_port=self.plan.ports["kafka_controller"],
            data=data,
            max_message_bytes=MAX_MESSAGE_BYTES,
        )
        (config / "server.properties").write_text(properties, encoding="utf-8")
        (config / "log4j2.properties").write_text(_LOG4J, encoding="utf-8")
        if not (data / "meta.properties").is_file():
            self._format()

    def command(self) -> list[str]:
        config = self.plan.home.config(self.name)
        return [*self._java(_HEAP_MIB), "kafka.Kafka", str(config / "server.properties")]

    def environment(self) -> dict[str, str]:
        return java_environment(super().environment())

    def probe(self) -> str:
        return kafka_answers(self.port)

    def _java(self, heap_mib: int) -> list[str]:
        log4j = self.plan.home.config(self.name) / "log4j2.properties"
        options = [
            "-XX:+UseSerialGC",
            "-XX:MaxDirectMemorySize=128m",
            f"-Dlog4j2.configurationFile={log4j.as_uri()}",
            "-cp",
            class_path(self.plan.cache, self.name),
        ]
        return java_command(heap_mib, options)

    def _format(self) -> None:
        """Give the empty data folder its cluster id (Kafka refuses to start on a bare one)."""
        properties = self.plan.home.config(self.name) / "server.properties"
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # With "=": an id may begin with a dash.
        named = (f"--cluster-id={cluster_id}", f"--config={properties}")
        tool = ["kafka.tools.StorageTool", "format", *named]
        done = subprocess.run(
            [*self._java(128), *tool],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=_FORMAT_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise ServiceFailed(f"kafka's data folder can't be formatted: {done.stderr.strip()}")
