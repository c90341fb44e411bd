skep push orders '{"id": 1, "total": 99.5}' --partition customer-7
skep pop orders --group billing --json
