-- A store of version 2 with three threads (test/store/threads.ts, seeds 1 to 3, with events), as kvfold 0.1 wrote it. Never made anew.
CREATE TABLE threads (
    number INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    id TEXT NOT NULL,
    model TEXT NOT NULL,
    created INTEGER NOT NULL, -- Unix milliseconds
    used INTEGER NOT NULL,
    parent TEXT, -- id of the thread that it was forked from, which may be gone
    contract TEXT,
    tools TEXT NOT NULL, -- JSON
    held TEXT NOT NULL, -- JSON
    sum INTEGER NOT NULL, -- CRC-32 of the row, in all tables
    UNIQUE (tenant, id)
  ) STRICT;
CREATE INDEX threads_by_use ON threads (used);
CREATE TABLE messages (
    thread INTEGER NOT NULL REFERENCES threads ON DELETE CASCADE,
    place INTEGER NOT NULL, -- from 0, without gaps
    message TEXT NOT NULL, -- JSON, without the sampled tokens
    tokens BLOB, -- the sampled tokens, 32-bit integers, low byte first
    seen TEXT NOT NULL, -- JSON
    sum INTEGER NOT NULL,
    UNIQUE (thread, place)
  ) STRICT;
CREATE TABLE edits (
    thread INTEGER PRIMARY KEY REFERENCES threads ON DELETE CASCADE,
    fragments TEXT NOT NULL, -- JSON
    searches TEXT NOT NULL, -- JSON
    ids INTEGER NOT NULL,
    sum INTEGER NOT NULL
  ) STRICT;
CREATE TABLE entries (
    thread INTEGER NOT NULL REFERENCES threads ON DELETE CASCADE,
    place INTEGER NOT NULL,
    entry TEXT NOT NULL, -- JSON
    sum INTEGER NOT NULL,
    UNIQUE (thread, place)
  ) STRICT;
CREATE TABLE cards (
    thread INTEGER PRIMARY KEY REFERENCES threads ON DELETE CASCADE,
    chain BLOB, -- 16 bytes for each message that clients know
    card TEXT NOT NULL, -- JSON, without the chain
    sum INTEGER NOT NULL
  ) STRICT;
CREATE TABLE events (
    thread INTEGER NOT NULL REFERENCES threads ON DELETE CASCADE,
    place INTEGER NOT NULL,
    event TEXT NOT NULL, -- JSON
    sum INTEGER NOT NULL,
    UNIQUE (thread, place)
  ) STRICT;
INSERT INTO threads (number, tenant, id, model, created, used, parent, contract, tools, held, sum) VALUES (1, 'public', 'thread_00000000000000000000000000000001', 'builtin', 1700000000001, 1700000100001, 'thread_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'splice', '[{"name":"get_weather","description":"Tells \"it\".","parameters":{"type":"object","properties":{}}}]', '[{"role":"system","content":"half \ud83d of a pairxxx"}]', 1271830588);
INSERT INTO threads (number, tenant, id, model, created, used, parent, contract, tools, held, sum) VALUES (2, 'public', 'thread_00000000000000000000000000000002', 'builtin', 1700000000002, 1700000100002, NULL, NULL, '[{"name":"get_weather","description":"Tells \"it\".","parameters":{"type":"object","properties":{}}}]', '[{"role":"user","content":"__proto__xxxxxxxxxxxxxxxxxx"}]', 3295812949);
INSERT INTO threads (number, tenant, id, model, created, used, parent, contract, tools, held, sum) VALUES (3, 'public', 'thread_00000000000000000000000000000003', 'builtin', 1700000000003, 1700000100003, 'thread_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'splice', '[{"name":"get_weather","description":"Tells \"it\".","parameters":{"type":"object","properties":{}}}]', '[]', 824271189);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (1, 0, '{"role":"system","content":"half \ud83d of a pairxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}', NULL, '"nothing"', 2844344384);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (1, 1, '{"role":"assistant","content":"__proto__xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","reasoning":"Helloxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","toolCalls":[{"id":"😀 é\n\"quoted\" \\  xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","name":"__proto__xxxxxxxxxx","arguments":{"1":0,"2":[1.5,null,"\ud83d"],"__proto__":{"x":1}}}],"sampled":"😀 é\n\"quoted\" \\  xxxxxxxxxxxxxxxxxxxxxxx"}', X'2D3F90E081E0C9FC', '{"role":"assistant","content":"😀 é\n\"quoted\" \\  xxxxxxx","sampled":{"text":"nullxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","tokens":[-2141541885,-1151478556,-1748715744,-1336251930]}}', 4059090832);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (1, 2, '{"role":"assistant","content":"😀 é\n\"quoted\" \\  xxxxxxx","sampled":"nullxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}', X'03AA5A80E4D45DBB20B7C497E6695AB0', '"same"', 3645959578);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (2, 0, '{"role":"assistant","content":"__proto__xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","reasoning":"Helloxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","toolCalls":[{"id":"😀 é\n\"quoted\" \\  xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","name":"__proto__xxxxxxxxxx","arguments":{"1":0,"2":[1.5,null,"\ud83d"],"__proto__":{"x":1}}}],"sampled":"😀 é\n\"quoted\" \\  xxxxxxxxxxxxxxxxxxxxxxx"}', X'2D3F90E081E0C9FC', '{"role":"assistant","content":"😀 é\n\"quoted\" \\  xxxxxxx","sampled":{"text":"nullxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","tokens":[-2141541885,-1151478556,-1748715744,-1336251930]}}', 4059090832);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (2, 1, '{"role":"assistant","content":"😀 é\n\"quoted\" \\  xxxxxxx","sampled":"nullxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}', X'03AA5A80E4D45DBB20B7C497E6695AB0', '"same"', 3645959578);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (2, 2, '{"role":"system","content":"half \ud83d of a pairxxx"}', NULL, '"nothing"', 732460463);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (3, 0, '{"role":"assistant","content":"😀 é\n\"quoted\" \\  xxxxxxx","sampled":"nullxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}', X'03AA5A80E4D45DBB20B7C497E6695AB0', '"same"', 3645959578);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (3, 1, '{"role":"system","content":"half \ud83d of a pairxxx"}', NULL, '"nothing"', 732460463);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (3, 2, '{"role":"user","content":"Helloxxxxxxxxxxxxxxxxxxxxx"}', NULL, '{"role":"user","content":"😀 é\n\"quoted\" \\  xxxxxxx"}', 3828159698);
INSERT INTO edits (thread, fragments, searches, ids, sum) VALUES (1, '[{"id":"f00000","message":0,"span":{"start":0,"end":3},"state":{"kind":"open"}},{"id":"f00001","message":1,"span":{"start":1,"end":4},"state":{"kind":"folded"},"contract":"splice"},{"id":"f00002","message":2,"span":{"start":2,"end":5},"state":{"kind":"summarised","summary":"Hello","focus":"for Hello"}}]', '[{"id":"s00011","message":1,"span":{"start":0,"end":2}}]', 5, 2558297113);
INSERT INTO edits (thread, fragments, searches, ids, sum) VALUES (2, '[{"id":"f00000","message":0,"span":{"start":0,"end":3},"state":{"kind":"open"}},{"id":"f00001","message":1,"span":{"start":1,"end":4},"state":{"kind":"folded"},"contract":"splice"},{"id":"f00002","message":2,"span":{"start":2,"end":5},"state":{"kind":"summarised","summary":"null","focus":"for null"}}]', '[{"id":"s00012","message":1,"span":{"start":0,"end":2}}]', 6, 2023486175);
INSERT INTO edits (thread, fragments, searches, ids, sum) VALUES (3, '[{"id":"f00000","message":0,"span":{"start":0,"end":3},"state":{"kind":"open"}},{"id":"f00001","message":1,"span":{"start":1,"end":4},"state":{"kind":"folded"},"contract":"splice"},{"id":"f00002","message":2,"span":{"start":2,"end":5},"state":{"kind":"summarised","summary":"a\u0000b","focus":"for a\u0000b"}}]', '[{"id":"s00013","message":1,"span":{"start":0,"end":2}}]', 7, 3210342641);
INSERT INTO entries (thread, place, entry, sum) VALUES (1, 0, '{"step":0,"kind":"answer","contract":"exact","fallback":null,"messages":[{"index":0,"role":"user","shown":100,"reused":90,"recomputed":4,"fresh":6,"approximate":0},{"index":1,"role":"user","shown":101,"reused":90,"recomputed":4,"fresh":7,"approximate":0}],"shown":205,"reused":180,"recomputed":8,"fresh":17,"approximate":0,"positions":205,"side":1,"submitted":26,"pending":1,"sources":{"own":180,"parked":0,"shared":0},"tiers":{"host":0,"disk":0},"parked":3,"evicted":0,"moved":0,"milliseconds":{"cache":0.25,"prefill":12.5,"decode":7.75},"predicted":null}', 2725487693);
INSERT INTO entries (thread, place, entry, sum) VALUES (1, 1, '{"step":1,"kind":"answer","contract":"exact","fallback":"because \"so\"","messages":[{"index":0,"role":"user","shown":100,"reused":90,"recomputed":4,"fresh":6,"approximate":0},{"index":1,"role":"user","shown":101,"reused":90,"recomputed":4,"fresh":7,"approximate":0}],"shown":205,"reused":180,"recomputed":8,"fresh":17,"approximate":0,"positions":205,"side":1,"submitted":26,"pending":1,"sources":{"own":180,"parked":0,"shared":0},"tiers":{"host":0,"disk":0},"parked":3,"evicted":0,"moved":0,"milliseconds":{"cache":0.25,"prefill":12.5,"decode":7.75},"predicted":12.25}', 2887685152);
INSERT INTO entries (thread, place, entry, sum) VALUES (2, 0, '{"step":0,"kind":"answer","contract":"exact","fallback":null,"messages":[{"index":0,"role":"user","shown":100,"reused":90,"recomputed":4,"fresh":6,"approximate":0},{"index":1,"role":"user","shown":101,"reused":90,"recomputed":4,"fresh":7,"approximate":0}],"shown":205,"reused":180,"recomputed":8,"fresh":17,"approximate":0,"positions":205,"side":1,"submitted":26,"pending":1,"sources":{"own":180,"parked":0,"shared":0},"tiers":{"host":0,"disk":0},"parked":3,"evicted":0,"moved":0,"milliseconds":{"cache":0.25,"prefill":12.5,"decode":7.75},"predicted":null}', 2725487693);
INSERT INTO entries (thread, place, entry, sum) VALUES (2, 1, '{"step":1,"kind":"answer","contract":"exact","fallback":"because \"so\"","messages":[{"index":0,"role":"user","shown":100,"reused":90,"recomputed":4,"fresh":6,"approximate":0},{"index":1,"role":"user","shown":101,"reused":90,"recomputed":4,"fresh":7,"approximate":0}],"shown":205,"reused":180,"recomputed":8,"fresh":17,"approximate":0,"positions":205,"side":1,"submitted":26,"pending":1,"sources":{"own":180,"parked":0,"shared":0},"tiers":{"host":0,"disk":0},"parked":3,"evicted":0,"moved":0,"milliseconds":{"cache":0.25,"prefill":12.5,"decode":7.75},"predicted":12.25}', 2887685152);
INSERT INTO entries (thread, place, entry, sum) VALUES (3, 0, '{"step":0,"kind":"answer","contract":"exact","fallback":null,"messages":[{"index":0,"role":"user","shown":100,"reused":90,"recomputed":4,"fresh":6,"approximate":0},{"index":1,"role":"user","shown":101,"reused":90,"recomputed":4,"fresh":7,"approximate":0}],"shown":205,"reused":180,"recomputed":8,"fresh":17,"approximate":0,"positions":205,"side":1,"submitted":26,"pending":1,"sources":{"own":180,"parked":0,"shared":0},"tiers":{"host":0,"disk":0},"parked":3,"evicted":0,"moved":0,"milliseconds":{"cache":0.25,"prefill":12.5,"decode":7.75},"predicted":null}', 2725487693);
INSERT INTO entries (thread, place, entry, sum) VALUES (3, 1, '{"step":1,"kind":"answer","contract":"exact","fallback":"because \"so\"","messages":[{"index":0,"role":"user","shown":100,"reused":90,"recomputed":4,"fresh":6,"approximate":0},{"index":1,"role":"user","shown":101,"reused":90,"recomputed":4,"fresh":7,"approximate":0}],"shown":205,"reused":180,"recomputed":8,"fresh":17,"approximate":0,"positions":205,"side":1,"submitted":26,"pending":1,"sources":{"own":180,"parked":0,"shared":0},"tiers":{"host":0,"disk":0},"parked":3,"evicted":0,"moved":0,"milliseconds":{"cache":0.25,"prefill":12.5,"decode":7.75},"predicted":12.25}', 2887685152);
INSERT INTO cards (thread, chain, card, sum) VALUES (1, X'0102030405060708090A0B0C0D0E0F10', '{"title":"Hello","messages":3,"fragments":{"open":1,"folded":1,"summarised":0},"last":{"shown":100,"reused":1}}', 1321024252);
INSERT INTO cards (thread, chain, card, sum) VALUES (2, X'02030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F2021', '{"title":"null","messages":3,"fragments":{"open":1,"folded":2,"summarised":0},"last":null}', 2783956128);
INSERT INTO cards (thread, chain, card, sum) VALUES (3, X'030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F202122232425262728292A2B2C2D2E2F303132', '{"title":"a\u0000b","messages":3,"fragments":{"open":1,"folded":3,"summarised":0},"last":{"shown":100,"reused":3}}', 3472787955);
INSERT INTO events (thread, place, event, sum) VALUES (1, 0, '{"kind":"policy","at":1700000000001,"after":1,"folded":["f00001"],"saves":101,"reason":"Hello"}', 2793520481);
INSERT INTO events (thread, place, event, sum) VALUES (1, 1, '{"kind":"policy","at":1700000000002,"after":2,"folded":["f00001"],"saves":102,"reason":"null"}', 601264762);
INSERT INTO events (thread, place, event, sum) VALUES (2, 0, '{"kind":"policy","at":1700000000002,"after":2,"folded":["f00001"],"saves":102,"reason":"null"}', 601264762);
INSERT INTO events (thread, place, event, sum) VALUES (2, 1, '{"kind":"policy","at":1700000000003,"after":3,"folded":["f00001"],"saves":103,"reason":"a\u0000b"}', 1215838419);
INSERT INTO events (thread, place, event, sum) VALUES (3, 0, '{"kind":"policy","at":1700000000003,"after":3,"folded":["f00001"],"saves":103,"reason":"a\u0000b"}', 1215838419);
INSERT INTO events (thread, place, event, sum) VALUES (3, 1, '{"kind":"policy","at":1700000000004,"after":4,"folded":["f00001"],"saves":104,"reason":"half \ud83d of a pair"}', 73460993);
PRAGMA application_id=1802921572;
PRAGMA user_version=2;
