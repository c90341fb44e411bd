-- When somebody last looked for dead groups: silence that nobody was there to hear is none.
ALTER TABLE skep.settings ADD watched_at timestamptz;
