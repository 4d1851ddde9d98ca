"""One Cassandra 5.0 node, bounded for a laptop, on the Java 17 runtime."""

from __future__ import annotations

from infra.local.java import class_path, jar_path, java_command, java_environment
from infra.local.probes import cassandra_answers
from infra.local.service import Service

_HEAP_MIB = 1024
_DIRECT_MEMORY_MIB = 256

_CASSANDRA_YAML = """\
cluster_name: headwater
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "127.0.0.1:{storage_port}"
listen_address: 127.0.0.1
storage_port: {storage_port}
rpc_address: 127.0.0.1
native_transport_port: {port}
# Without it, Cassandra 5 keeps the file formats and features of version 4.
storage_compatibility_mode: NONE

data_file_directories: ["{data}/data"]
commitlog_directory: "{data}/commitlog"
saved_caches_directory: "{data}/saved_caches"
hints_directory: "{data}/hints"

# An acknowledged write is on disk. (With `periodic`, a killed node lost the writes of its last
# 100 ms; concurrent writes share one sync, so that throughput is the same: 6.1 and 6.4 k rows/s.)
commitlog_sync: batch
commitlog_segment_size: 16MiB
commitlog_total_space: 256MiB
sstable:
  selected_format: bti

# Bounds for two cores and a small heap.
memtable_allocation_type: offheap_objects
memtable_heap_space: 128MiB
memtable_offheap_space: 128MiB
file_cache_size: 64MiB
networking_cache_size: 32MiB
key_cache_size: 16MiB
counter_cache_size: 0MiB
row_cache_size: 0MiB
concurrent_reads: 16
concurrent_writes: 16
concurrent_counter_writes: 2
concurrent_compactors: 1
compaction_throughput: 32MiB/s
native_transport_max_threads: 32
native_transport_max_request_data_in_flight: 64MiB
native_transport_max_request_data_in_flight_per_ip: 64MiB

# One node for one developer: no other replica to hint, no snapshot before a table is dropped.
hinted_handoff_enabled: false
dynamic_snitch: false
auto_snapshot: false
authenticator: AllowAllAuthenticator
authorizer: AllowAllAuthorizer
"""

_LOGBACK = """\
<configuration>
  <appender name="console" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{yyyy-MM-dd HH:mm:ss,SSS} %-5level %logger{0}: %msg%n</pattern></encoder>
  </appender>
  <logger name="org.apache.cassandra.config.DatabaseDescriptor" level="WARN"/>
  <logger name="org.apache.cassandra.config.Config" level="WARN"/>
  <root level="INFO"><appender-ref ref="console"/></root>
</configuration>
"""

# What conf/jvm17-server.options of Cassandra 5.0 opens, and what its jamm 0.4 agent measures.
_EXPORTS = (
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.rmi/sun.rmi.transport.tcp",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
)
_OPENS = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/java.util.concurrent.locks",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.management/com.sun.management.internal",
)


class CassandraService(Service):
    """The node; the keyspace and tables are made by `headwater apply`."""

    name = "cassandra"

    @property
    def port(self) -> int:
        return self.plan.ports["cassandra"]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def prepare(self) -> None:
        config, data = self.plan.home.config(self.name), self.plan.home.data(self.name)
        for folder in (config, data):
            folder.mkdir(parents=True, exist_ok=True)
        text = _CASSANDRA_YAML.format(
            port=self.port, storage_port=self.plan.ports["cassandra_storage"], data=data
        )
        (config / "cassandra.yaml").write_text(text, encoding="utf-8")
        (config / "logback.xml").write_text(_LOGBACK, encoding="utf-8")

    def command(self) -> list[str]:
        config, data = self.plan.home.config(self.name), self.plan.home.data(self.name)
        options = [
            "-XX:+UseG1GC",
            f"-XX:MaxDirectMemorySize={_DIRECT_MEMORY_MIB}m",
            f"-javaagent:{jar_path(self.plan.cache, 'jamm')}",
            "-Djdk.attach.allowAttachSelf=true",
            *(f"--add-exports={name}=ALL-UNNAMED" for name in _EXPORTS),
            *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENS),
            f"-Dcassandra.config={(config / 'cassandra.yaml').as_uri()}",
            f"-Dcassandra.storagedir={data}",
            f"-Dlogback.configurationFile={(config / 'logback.xml').as_uri()}",
            "-Dcassandra-foreground=yes",
            # A single node has no peer to wait for, neither at the start nor at the end.
            "-Dcassandra.shutdown_announce_in_ms=0",
            "-Dcassandra.skip_wait_for_gossip_to_settle=0",
            "-Dcassandra.ring_delay_ms=0",
            "-Dcassandra.superuser_setup_delay_ms=0",
            f"-Djava.io.tmpdir={self.plan.home.config(self.name)}",
            "-cp",
            class_path(self.plan.cache, self.name),
        ]
        return [
            *java_command(_HEAP_MIB, options),
            "org.apache.cassandra.service.CassandraDaemon",
        ]

    def environment(self) -> dict[str, str]:
        return java_environment(super().environment())

    def probe(self) -> str:
        return cassandra_answers(self.port)
