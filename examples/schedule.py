"""A schedule: a message every working day in the morning, in the time zone of Berlin."""

from skep import Skep

with Skep() as mq:
    made = mq.schedule("report", "0 9 * * mon-fri", "reports", {"kind": "sales"}, time_zone="Europe/Berlin")
    print(made.name, "to", made.queue, "at", f"{made.next_at:%M}", "past the hour")
    print("paused:", mq.pause_schedule("report").paused)
    print("schedules:", [schedule.name for schedule in mq.schedules("reports")])
    mq.delete_schedule("report")
