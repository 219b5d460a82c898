"""The contract of a compaction service, as tests that any implementation can run.

    from lastword.testing import CompactionServiceContract

    class TestMyService(CompactionServiceContract):
        factory = "my_package.compaction:MyServiceFactory"

pytest finds the inherited tests. Each test has its own log in a temporary folder, whose settings name that factory.

one_log.py     the log of one test, and shared steps
records.py     records to write, and the expected ones
compacting.py  tests of the records that a compaction keeps
reading.py     tests of pages, and of reads while a compaction runs
separation.py  tests of several partitions and topics
ending.py      tests of erasure, deletion and closing
contract.py    the contract as a whole
"""

from lastword.testing.compaction_service.contract import CompactionServiceContract

__all__ = ["CompactionServiceContract"]
