-- Dead letters grouped by error, after ids, times, addresses, numbers and quoted values were removed from it.
WITH plain AS (
    SELECT *, regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(error,
               '(?i)\\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\\b', '<uuid>'),
               '\\b\\d{4}-\\d{2}-\\d{2}[T ]\\d{2}:\\d{2}(:\\d{2}([.,]\\d+)?)?(Z|[+-]\\d{2}:?\\d{2})?', '<time>'),
               '\\b\\d{1,3}(\\.\\d{1,3}){3}(:\\d+)?\\b', '<address>'),
               '(?i)\\b(0x[0-9a-f]+|(?=[0-9a-f]*\\d)(?=[0-9]*[a-f])[0-9a-f]{8,})\\b', '<hex>'),
               '\'[^\']*\'|"[^"]*"', '<value>'),
               '\\d+([.,]\\d+)*', '#'),
               '\\s+', ' ') AS text
    FROM dead_letters
)
SELECT substr(sha2(fingerprint, 256), 1, 12) AS id, fingerprint, queue, group_name, count(*) AS letters, count(DISTINCT partition) AS partitions,
       max(attempts) AS attempts, min(failed_at) AS first_at, max(failed_at) AS last_at, max_by(error, failed_at) AS example
FROM (SELECT *, substr(trim(text), 1, 200) AS fingerprint FROM plain)
GROUP BY fingerprint, queue, group_name
ORDER BY letters DESC, fingerprint, queue, group_name
