SELECT status, id, due_at FROM skep.push('sql-reminders', '{"order": 7}', delay => 7200);
SELECT status, due_at FROM skep.push('sql-reminders', '{"order": 8}', deliver_at => now() + interval '3 days');
SELECT payload, due_at FROM skep.list_delayed('sql-reminders');
SELECT skep.cancel_delayed(id) FROM skep.list_delayed('sql-reminders');
