"""Examples, which `--help` shows below the options of each command. Tests parse all of them."""

from collections.abc import Iterator

import typer
from rich.markup import escape
from typer.models import CommandInfo

EXAMPLES: dict[str, tuple[str, ...]] = {
    "serve": (
        "skep serve",
        "skep serve --database-url postgresql://ann@db/shop --host 0.0.0.0 --workers 4",
    ),
    "install": (
        "skep install --database-url postgresql://ann@db/shop",
        "skep install --print > skep.sql",
    ),
    "uninstall": ("skep uninstall --database-url postgresql://ann@db/shop",),
    "push": (
        "skep push orders '{\"id\": 1}' --partition customer-7 --header source=shop",
        "seq 1 1000 | skep push numbers",
        "skep push notes --text 'any text' 'another'",
        "skep push reminders '{\"order\": 7}' --delay 2h",
    ),
    "pop": (
        "skep pop orders --group billing --batch 10",
        "skep pop orders --wait 10 --json",
        "skep pop --namespace shop --no-ack",
    ),
    "tail": (
        "skep tail orders",
        "skep tail orders --from beginning --limit 100 --json",
        "skep tail orders --from '2026-01-31 12:00' --partition customer-7",
    ),
    "top": ("skep top", "skep top --interval 1", "skep top --once --json"),
    "doctor": ("skep doctor", "skep doctor --thorough --json"),
    "demo": ("skep demo", "skep demo --seconds 60 --rate 100", "skep demo --clean"),
    "bench": ("skep bench", "skep bench --seconds 1 --workers 16 --batch 10 --size 1000 --json"),
    "completion": (
        "skep completion bash > ~/.local/share/bash-completion/completions/skep",
        "skep completion fish > ~/.config/fish/completions/skep.fish",
    ),
    "upkeep": ("skep upkeep", "skep upkeep --once --json", "skep upkeep --dry-run"),
    "queue list": ("skep queue list", "skep queue list --json"),
    "queue show": ("skep queue show orders", "skep queue show orders --limit 1000"),
    "queue configure": (
        "skep queue configure orders lease_time=60 retry_limit=5 namespace=shop",
        "skep queue configure orders retention_seconds=null",
    ),
    "queue delete": ("skep queue delete orders", "skep queue delete orders --partition customer-7 --yes"),
    "queue clear": ("skep queue clear orders", "skep queue clear orders --partition customer-7 --yes"),
    "queue fanout": ("skep queue fanout orders --partition customer-7 --from 100", "skep queue fanout orders --json"),
    "queue retention": ("skep queue retention", "skep queue retention orders --json"),
    "queue history": ("skep queue history orders --since 30m", "skep queue history orders --group billing --json"),
    "message list": (
        "skep message list orders",
        "skep message list orders --partition customer-7 --from 100 --limit 10",
    ),
    "message show": ("skep message show 00000000-0000-8001-8000-000000000000",),
    "message delete": ("skep message delete 00000000-0000-8001-8000-000000000000 --yes",),
    "delayed list": ("skep delayed list", "skep delayed list reminders --limit 10 --json"),
    "delayed cancel": ("skep delayed cancel 2f1c5e0a-7c0f-4b43-9a43-6a1f5d0e8d11",),
    "schedule list": ("skep schedule list", "skep schedule list reports --json"),
    "schedule set": (
        "skep schedule set nightly '0 2 * * *' reports '{\"kind\": \"sales\"}' --time-zone Europe/Berlin",
        "skep schedule set ping '*/5 * * * *' pings --missed skip",
    ),
    "schedule pause": ("skep schedule pause nightly",),
    "schedule resume": ("skep schedule resume nightly",),
    "schedule delete": ("skep schedule delete nightly",),
    "group list": ("skep group list", "skep group list --queue orders --json"),
    "group show": ("skep group show billing", "skep group show billing --queue orders --limit 10"),
    "group seek": (
        "skep group seek billing orders beginning",
        "skep group seek billing orders '2026-01-31 12:00'",
        "skep group seek billing orders 100 --partition customer-7",
    ),
    "group delete": ("skep group delete billing", "skep group delete billing --queue orders --keep-subscription --yes"),
    "group blocked": ("skep group blocked", "skep group blocked orders --json"),
    "group subscribe": (
        "skep group subscribe audit orders --mode all --heartbeat-interval 30s --heartbeat-timeout 2m",
        "skep group subscribe audit --namespace shop --mode new",
        "skep group subscribe audit orders --mode timestamp --from '2026-01-31 12:00'",
    ),
    "group configure": (
        "skep group configure audit retry_limit=8 max_retry_delay=60 --queue orders",
        "skep group configure audit retry_limit=null",
    ),
    "group explain": ("skep group explain billing orders", "skep group explain billing orders customer-7 --json"),
    "group pause": ("skep group pause audit orders", "skep group pause audit"),
    "group resume": ("skep group resume audit orders",),
    "group heartbeat": ("skep group heartbeat audit orders",),
    "group cancel": ("skep group cancel audit orders --yes",),
    "group remove": ("skep group remove audit", "skep group remove audit orders --yes --json"),
    "group force-complete": ("skep group force-complete audit orders --older-than 2h",),
    "group defaults": ("skep group defaults", "skep group defaults --mode new --max-poll-interval 5s"),
    "dead-letter list": (
        "skep dead-letter list --queue orders --since 1d --limit 20",
        "skep dead-letter list --error timeout --json",
    ),
    "dead-letter count": ("skep dead-letter count", "skep dead-letter count --queue orders --since 1h"),
    "dead-letter redrive": (
        "skep dead-letter redrive --queue orders --error timeout --dry-run",
        "skep dead-letter redrive --queue orders --rate 50",
        "skep dead-letter redrive --id 7 --id 8 --to-queue orders-again",
    ),
    "dead-letter purge": ("skep dead-letter purge --until 30d", "skep dead-letter purge --queue orders --yes"),
    "dead-letter audit": ("skep dead-letter audit", "skep dead-letter audit --limit 1000 --json"),
    "key create": (
        "skep key create shop --role write-only --expires 90d",
        "skep key create billing --grant 'orders.*:pop,ack' --grant 'payments:push'",
    ),
    "key list": ("skep key list",),
    "key revoke": ("skep key revoke 0123456789ab",),
    "pipeline analytics": (
        "skep pipeline analytics --reports /srv/reports",
        "skep pipeline analytics orders payments --since 1d --archive /srv/archive --reports /srv/reports",
    ),
    "pipeline archive": (
        "skep pipeline archive orders payments --archive /srv/archive",
        "skep pipeline archive --namespace shop --archive s3://bucket/archive --master spark://host:7077",
    ),
    "pipeline compact": ("skep pipeline compact --archive /srv/archive",),
    "pipeline import": (
        "skep pipeline import orders orders.jsonl --partition-by customer",
        "skep pipeline import orders 'old/*.parquet' --transaction-id id",
    ),
    "pipeline replay": (
        "skep pipeline replay orders --to orders-again --since 1d",
        "skep pipeline replay orders --to orders-again --archive /srv/archive --group late",
    ),
    "maintenance show": ("skep maintenance show",),
    "maintenance start": ("skep maintenance start", "skep maintenance start --push"),
    "maintenance end": ("skep maintenance end",),
}


def add_examples(app: typer.Typer) -> None:
    for name, command in commands_of(app):
        # Typer joins lines that have no empty line between them.
        command.epilog = "\n\n".join(("Examples:", *(escape(f"$ {line}") for line in EXAMPLES.get(name, ()))))


def commands_of(app: typer.Typer, prefix: str = "") -> Iterator[tuple[str, CommandInfo]]:
    """Yield every command with its full name. Hidden aliases are left out."""
    for command in app.registered_commands:
        yield prefix + (command.name or getattr(command.callback, "__name__", "")), command
    for group in app.registered_groups:
        if group.typer_instance is not None and not group.hidden:
            yield from commands_of(group.typer_instance, f"{prefix}{group.name} ")
