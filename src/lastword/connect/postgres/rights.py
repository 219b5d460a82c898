"""Finds the rights that a role lacks, and the statement that grants each, before anything is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lastword.connect.postgres.database import Database, Table
from lastword.connect.postgres.stream import check_replication
from lastword.errors import LastwordError


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The parts of a database that a source will use."""

    tables: Sequence[Table]
    publication: str
    slot: str
    creates: bool
    """Whether it may create the publication and the slot if they don't exist."""


def missing_rights(database: Database, need: Need) -> list[str]:
    """Return the missing rights, for people to read; the first statement in each text is enough to grant it."""
    found = database.one(
        "SELECT format('%I', current_user), format('%I', current_database()), rolreplication OR rolsuper, "
        "has_database_privilege(current_database(), 'CREATE') FROM pg_roles WHERE rolname = current_user"
    )
    assert found is not None
    role, name, replicates, may_create = found
    return [
        *_of_replication(database, role, replicates),
        *_of_tables(database, role, need.tables),
        *(_of_publication(database, role, name, may_create, need) if need.creates else ()),
        *(_of_slots(database, need.slot) if need.creates else ()),
    ]


def _of_replication(database: Database, role: str, replicates: bool) -> Iterator[str]:
    """Find out by trying: services have their own roles for it (rds_replication), and there may be too many senders."""
    try:
        check_replication(database.dsn)
    except LastwordError as error:
        if replicates:
            yield f"no replication connection can be opened: {error}"
        else:
            yield (
                f"the role {role} may not replicate: `ALTER ROLE {role} REPLICATION` as a superuser; on Amazon RDS "
                f"`GRANT rds_replication TO {role}`"
            )


def _of_tables(database: Database, role: str, tables: Sequence[Table]) -> Iterator[str]:
    for table in tables:
        found = database.one(
            "SELECT has_table_privilege(%s::oid, 'SELECT'), row_security_active(%s::oid)", [table.oid] * 2
        )
        assert found is not None
        may_read, is_filtered = found
        if not may_read:
            yield (
                f"the role {role} may not read {table.quoted}: `GRANT SELECT ON {table.quoted} TO {role}`; single columns "
                f"are not enough, because the table is locked while it is read"
            )
        if is_filtered:
            yield (
                f"row-level security hides rows of {table.quoted} from the role {role}: `ALTER ROLE {role} BYPASSRLS` as a "
                f"superuser"
            )


def _of_publication(database: Database, role: str, name: str, may_create: bool, need: Need) -> Iterator[str]:
    publication = database.quote(need.publication)
    missing = [each for each in need.tables if database.published(each, need.publication) is None]
    owned = {
        each.oid: owns
        for each in missing
        for (owns,) in database.rows(
            "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = %s", [each.oid]
        )
    }
    give = [f"`ALTER TABLE {each.quoted} OWNER TO {role}`" for each in missing if not owned.get(each.oid)]
    listed = ", ".join(each.quoted for each in missing)
    found = database.one(
        "SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s", [need.publication]
    )
    if found is None:
        what, way = (
            f"create the publication {publication}",
            database.create_publication_query(need.publication, missing),
        )
        if not may_create:
            give.insert(0, f"`GRANT CREATE ON DATABASE {name} TO {role}`")
    else:
        what, way = (
            f"add {listed} to the publication {publication}",
            f"ALTER PUBLICATION {publication} ADD TABLE {listed}",
        )
        if not found[0]:
            give.insert(0, f"`ALTER PUBLICATION {publication} OWNER TO {role}`")
    if missing and give:
        yield f"the role {role} may not {what}: let the owner run `{way}`; or {' and '.join(give)}"


def _of_slots(database: Database, slot: str) -> Iterator[str]:
    found = database.one(
        "SELECT count(*), current_setting('max_replication_slots')::int, count(*) FILTER (WHERE slot_name = %s) "
        "FROM pg_replication_slots",
        [slot],
    )
    assert found is not None
    used, most, own = found
    if not own and used >= most:
        yield (
            f"all {most} replication slots of the server are taken, and the slot {slot!r} is not among them: "
            f"`ALTER SYSTEM SET max_replication_slots = {most + 1}` and a restart of PostgreSQL, or drop an unused one "
            f"(SELECT * FROM pg_replication_slots)"
        )
