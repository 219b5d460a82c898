from lastword.testing import CompactionServiceContract


class TestInline(CompactionServiceContract):
    factory = "lastword.compaction.inline:InlineCompactionServiceFactory"
