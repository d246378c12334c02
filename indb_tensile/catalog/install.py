"""Installs or upgrades the catalog, as an extension if the server has its files, else by running the same source.

The source is the files `sql/*.sql` in the order of their names. These placeholders in the source are replaced:
`@VERSION@`; `@BRIDGE_SOURCES@` and `@BRIDGE_DIGEST@` by the Python modules that the bridge function compiles and by
their digest (bridge_sources.py); `@TRAIN_PARAMETERS@` and its relatives by the parameters of `tensile_train`
(train_signature.py); `@RAISE_ANSWER@` and `@REQUIRE_USER@` by the files of these names in `sql/fragments/`; and
`@DIGEST@` by the digest of the whole source, which tells two sources of the same version apart.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import psycopg

from indb_tensile.catalog import upgrade
from indb_tensile.catalog.bridge_sources import bridge_digest, bridge_sources
from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.queries import query
from indb_tensile.catalog.train_signature import fill_train_signature
from indb_tensile.errors import CatalogVersionError, DatabaseError, PrivilegeError, RequestError

VERSION = "0.2.0"  # version of the catalog and of the package; a test compares it with pyproject.toml

EXTENSION = "extension"
SCRIPT = "script"

_PACKAGE = Path(__file__).resolve().parents[1]
_EXTENSION_ONLY = "90_dump.sql"
_DECLARES_TRAIN = "50_functions.sql"
_FRAGMENTS = ("raise_answer", "require_user")  # parts of functions that several functions share
_FIRST_LINE = '\\echo Use "create extension tensile cascade" to load this file. \\quit\n'
_FIRST_LINE_OF_UPGRADE = '\\echo Use "alter extension tensile update" to load this file. \\quit\n'
_PUBLIC = re.compile(r"^create (?:function|procedure) public\.(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The version of the catalog in a database, and the way it was installed: EXTENSION or SCRIPT."""

    way: str
    version: str


def install(connection: Connection, *, way: str | None = None) -> Installation:
    """Install the catalog or upgrade it to VERSION. Changes nothing if the catalog has VERSION already.

    With `way` None, an installed catalog keeps its way, and a new one becomes an extension if the server has the
    files. Needs an autocommit connection of a superuser. Raises PrivilegeError, or DatabaseError that names what is
    missing.
    """
    existing = _installed_in_way(connection, way)
    if existing is not None and existing.version == VERSION:
        connection.execute(query("adopt_owners"))  # the catalog may have been restored from another server's dump
        return existing
    _check_server(connection)
    with connection.transaction():
        connection.execute(query("lock_database"))
        return _install(connection, way)


def _install(connection: Connection, way: str | None) -> Installation:
    """Install or upgrade. The caller has locked the database, so no other session is installing or upgrading."""
    existing = _installed_in_way(connection, way)
    if existing is not None and existing.version == VERSION:  # another session has finished its work meanwhile
        return existing
    available = _extension_is_available(connection)
    if way == EXTENSION and not available:
        raise DatabaseError(
            f"the server has no files of extension tensile {VERSION}",
            hint="Write them into the folder that pg_config --sharedir names, below extension.",
        )
    if existing is None:
        _check_left_overs(connection)
        chosen = way or (EXTENSION if available else SCRIPT)
        _create(connection, chosen)
        return Installation(way=chosen, version=VERSION)
    _upgrade(connection, existing, available=available)
    return Installation(way=existing.way, version=VERSION)


def _installed_in_way(connection: Connection, way: str | None) -> Installation | None:
    """Return the installed catalog, or None. Raises DatabaseError if it was installed in another way than `way`."""
    existing = installed(connection)
    if existing is not None and way is not None and existing.way != way:
        raise _other_way(connection, existing)
    return existing


def installed(connection: Connection) -> Installation | None:
    """Return the catalog that is installed in this database, or None."""
    way, has_schema = connection.execute(query("installed_way")).fetchone() or (None, False)
    if way is None and not has_schema:
        return None
    return Installation(way=way or SCRIPT, version=_version(connection))


def same_source(connection: Connection) -> bool:
    """Return whether the catalog in this database was made from the same source as this package has."""
    try:
        row = connection.execute(query("catalog_digest")).fetchone()
    except psycopg.errors.UndefinedFunction:
        return False  # the catalog is older than the function catalog_digest
    return row is not None and row[0] == digest()


def check_version(connection: Connection) -> None:
    """Raise CatalogVersionError unless the catalog has this package's version. The hint names the command to run."""
    existing = installed(connection)
    database = connection.info.dbname
    if existing is None:
        raise CatalogVersionError(
            f'the catalog is not installed in database "{database}"',
            hint=f"As a superuser: tensile init --dsn 'dbname={database}', or create extension tensile cascade.",
        )
    if existing.version != VERSION:
        raise CatalogVersionError(
            f'the catalog in database "{database}" has version {existing.version}, this program has {VERSION}',
            hint=f"As a superuser: tensile init --dsn 'dbname={database}' brings an older catalog up; "
            "for a newer catalog, install the newer package.",
        )


def script(extension: bool) -> str:
    """Return the whole source: for `create extension`, or without the statements that only an extension may run."""
    return _filled(_joined(_sources(extension)), digest=digest())


def upgrade_scripts(extension: bool) -> dict[str, str]:
    """Return the scripts that upgrade an older catalog to VERSION, by that older version."""
    by_version = upgrade.scripts(sql_directory() / "upgrade", VERSION, _sources(extension))
    return {old: _filled(text, digest=digest()) for old, text in by_version.items()}


def digest() -> str:
    """Return the digest of the whole source, which is the same for both ways of installation."""
    return hashlib.sha256(_filled(_joined(_sources(extension=True)), digest="").encode()).hexdigest()[:16]


def write_extension(directory: Path) -> tuple[Path, ...]:
    """Write the extension's files: the control file, the script and the upgrade scripts. Returns their paths."""
    control = (sql_directory() / "tensile.control").read_text(encoding="utf-8")
    texts = {
        "tensile.control": control.replace("@VERSION@", VERSION),
        f"tensile--{VERSION}.sql": _FIRST_LINE + script(extension=True),
    }
    for old, text in upgrade_scripts(extension=True).items():
        texts[f"tensile--{old}--{VERSION}.sql"] = _FIRST_LINE_OF_UPGRADE + text
    written = []
    for name, text in texts.items():
        path = directory / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
        written.append(path)
    return tuple(written)


def sql_directory() -> Path:
    """Return the directory of the SQL files: in an installed package, or at the top of the checkout."""
    for directory in (_PACKAGE / "sql", _PACKAGE.parent / "sql"):
        if (directory / "tensile.control").exists():
            return directory
    raise DatabaseError(
        f"the package at {_PACKAGE} lacks its SQL files", hint="Install it again: pip install indb-tensile."
    )


def _create(connection: Connection, way: str) -> None:
    if way == EXTENSION:
        connection.execute(query("create_extension"))
    else:
        _run(connection, script(extension=False))


def _upgrade(connection: Connection, existing: Installation, *, available: bool) -> None:
    by_version = upgrade_scripts(extension=False)
    if existing.version not in by_version or (existing.way == EXTENSION and not available):
        raise DatabaseError(
            f"the catalog has version {existing.version}, and there is no way from it to {VERSION}",
            hint="Place the newer extension's files on the server first."
            if existing.way == EXTENSION
            else f"Install the package of version {existing.version}, or one that is newer than {VERSION}.",
        )
    if existing.way == EXTENSION:
        connection.execute(query("update_extension"))
    else:
        _run(connection, by_version[existing.version])


def _run(connection: Connection, source: str) -> None:
    """Run a script in one transaction, with the same settings as `create extension` uses."""
    with connection.transaction():
        connection.execute(query("script_settings"))
        connection.execute(query("create_plpython"))
        connection.execute(source)


def _check_left_overs(connection: Connection) -> None:
    names = sorted(set(_PUBLIC.findall(script(extension=False))))
    (left,) = connection.execute(query("left_overs"), {"names": names}).fetchone() or (None,)
    if left:
        raise DatabaseError(
            f'database "{connection.info.dbname}" has no schema tensile, but {len(left)} functions in schema public '
            "whose names begin with tensile_",
            detail="They remain when schema tensile is dropped by hand, and an installation cannot replace them.",
            hint=f"As a superuser: {' '.join(left)} Then run this again.",
        )


def _check_server(connection: Connection) -> None:
    superuser, user, server_version, plpython = connection.execute(query("server_abilities")).fetchone() or (
        False,
        "",
        0,
        False,
    )
    if not superuser:
        raise PrivilegeError(
            f'"{user}" is not a superuser, and only a superuser can install functions in PL/Python',
            hint="Run tensile init as postgres: sudo -u postgres tensile init --dsn 'dbname=...'.",
        )
    if server_version < 150000:
        raise DatabaseError(
            f"the server is PostgreSQL {server_version // 10000}", hint="PostgreSQL 15 or newer is needed."
        )
    if not plpython:
        raise DatabaseError(
            "the server has no PL/Python: extension plpython3u is not available",
            hint=f"Install it; on Debian: apt-get install postgresql-plpython3-{server_version // 10000}.",
        )


def _extension_is_available(connection: Connection) -> bool:
    return connection.execute(query("extension_is_available"), {"version": VERSION}).fetchone() is not None


def _version(connection: Connection) -> str:
    try:
        row = connection.execute(query("catalog_version")).fetchone()
    except psycopg.errors.InsufficientPrivilege as error:
        raise PrivilegeError(
            f'"{connection.info.user}" may not use schema tensile',
            hint=f"As an administrator: grant tensile_user to {connection.info.user}.",
        ) from error
    except psycopg.errors.UndefinedFunction as error:
        raise RequestError(
            f'database "{connection.info.dbname}" has a schema tensile that is not ours',
            hint="Rename that schema, or use another database.",
        ) from error
    return str(row[0]) if row else ""


def _other_way(connection: Connection, existing: Installation) -> DatabaseError:
    names = {EXTENSION: "create extension", SCRIPT: "tensile init's own script"}
    return DatabaseError(
        f'the catalog in database "{connection.info.dbname}" was installed by {names[existing.way]}',
        hint="Continue in that way; or dump its models, drop the catalog, and install it again.",
    )


def _sources(extension: bool) -> list[Path]:
    """Return the source files of a fresh installation, in their order."""
    return sorted(path for path in sql_directory().glob("*.sql") if extension or path.name != _EXTENSION_ONLY)


def _joined(paths: list[Path]) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def _filled(source: str, *, digest: str) -> str:
    declaring = (sql_directory() / _DECLARES_TRAIN).read_text(encoding="utf-8")
    texts = {
        "@VERSION@": VERSION,
        "@DIGEST@": digest,
        "@BRIDGE_SOURCES@": bridge_sources(),
        "@BRIDGE_DIGEST@": bridge_digest(),
    }
    for name in _FRAGMENTS:
        fragment = (sql_directory() / "fragments" / f"{name}.sql").read_text(encoding="utf-8")
        texts[f"@{name.upper()}@"] = fragment.rstrip()
    filled = fill_train_signature(source, declaring)
    for placeholder, text in texts.items():
        filled = filled.replace(placeholder, text)
    return filled
