"""`skep group defaults`: what groups get that do not say where they start."""

from skep.cli.connect import connect
from skep.cli.show import say, show_json
from skep.cli.times import parse_length
from skep.config import Config


def run(config: Config, mode: str | None, max_poll_interval: str | None, *, as_json: bool) -> None:
    """Change what is given, and show what holds."""
    seconds = None if max_poll_interval is None else parse_length(max_poll_interval).total_seconds()
    with connect(config) as mq:
        if mode is None and seconds is None:
            defaults = mq.defaults()
        else:
            defaults = mq.configure_defaults(subscription_mode=mode, max_poll_interval=seconds)
    if as_json:
        show_json(defaults)
        return
    interval = defaults.max_poll_interval
    birth = f"new ones begin {2 * interval:g} s before their first contact, twice the poll interval of {interval:g} s"
    say(f"groups without a mode get {defaults.subscription_mode}; {birth}")
