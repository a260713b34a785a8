-- A store of version 4 with three threads (test/store/threads.ts, seeds 1 to 3), each with an update, as kvfold 0.1 wrote it. Never made anew.
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
CREATE TABLE digests (
    thread INTEGER PRIMARY KEY REFERENCES threads ON DELETE CASCADE,
    digest TEXT NOT NULL, -- JSON: rows and checksums of the thread, see digest.ts
    sum INTEGER NOT NULL -- from here on, in all tables, CRC-32 of the table's name, the row's keys and the row
  ) STRICT;
INSERT INTO threads (number, tenant, id, model, created, used, parent, contract, tools, held, sum) VALUES (1, 'public', 'thread_00000000000000000000000000000001', 'builtin', 1700000000001, 1700000100001, 'thread_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'splice', '[{"name":"get_weather","description":"Tells \"it\".","parameters":{"type":"object","properties":{}}}]', '[{"role":"system","content":"half \ud83d of a pairxxx"}]', 1422658607);
INSERT INTO threads (number, tenant, id, model, created, used, parent, contract, tools, held, sum) VALUES (2, 'public', 'thread_00000000000000000000000000000002', 'builtin', 1700000000002, 1700000100002, NULL, NULL, '[{"name":"get_weather","description":"Tells \"it\".","parameters":{"type":"object","properties":{}}}]', '[{"role":"user","content":"__proto__xxxxxxxxxxxxxxxxxx"}]', 2831242709);
INSERT INTO threads (number, tenant, id, model, created, used, parent, contract, tools, held, sum) VALUES (3, 'public', 'thread_00000000000000000000000000000003', 'builtin', 1700000000003, 1700000100003, 'thread_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'splice', '[{"name":"get_weather","description":"Tells \"it\".","parameters":{"type":"object","properties":{}}}]', '[]', 73523640);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (1, 0, '{"role":"system","content":"half \ud83d of a pairxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}', NULL, '"nothing"', 2046437676);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (1, 1, '{"role":"assistant","content":"__proto__xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","reasoning":"Helloxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","toolCalls":[{"id":"😀 é\n\"quoted\" \\  xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","name":"__proto__xxxxxxxxxx","arguments":{"1":0,"2":[1.5,null,"\ud83d"],"__proto__":{"x":1}}}],"sampled":"😀 é\n\"quoted\" \\  xxxxxxxxxxxxxxxxxxxxxxx"}', X'2D3F90E081E0C9FC', '{"role":"assistant","content":"😀 é\n\"quoted\" \\  xxxxxxx","sampled":{"text":"nullxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","tokens":[-2141541885,-1151478556,-1748715744,-1336251930]}}', 3158972798);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (1, 2, '{"role":"assistant","content":"😀 é\n\"quoted\" \\  xxxxxxx","sampled":"nullxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}', X'03AA5A80E4D45DBB20B7C497E6695AB0', '"same"', 2053444709);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (1, 3, '{"role":"user","content":"Helloxxxxxxxxxxxxxxxxxxxxx"}', NULL, '{"role":"user","content":"😀 é\n\"quoted\" \\  xxxxxxx"}', 1007921408);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (2, 0, '{"role":"assistant","content":"__proto__xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","reasoning":"Helloxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","toolCalls":[{"id":"😀 é\n\"quoted\" \\  xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","name":"__proto__xxxxxxxxxx","arguments":{"1":0,"2":[1.5,null,"\ud83d"],"__proto__":{"x":1}}}],"sampled":"😀 é\n\"quoted\" \\  xxxxxxxxxxxxxxxxxxxxxxx"}', X'2D3F90E081E0C9FC', '{"role":"assistant","content":"😀 é\n\"quoted\" \\  xxxxxxx","sampled":{"text":"nullxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","tokens":[-2141541885,-1151478556,-1748715744,-1336251930]}}', 3496783831);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (2, 1, '{"role":"assistant","content":"😀 é\n\"quoted\" \\  xxxxxxx","sampled":"nullxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}', X'03AA5A80E4D45DBB20B7C497E6695AB0', '"same"', 192640808);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (2, 2, '{"role":"system","content":"half \ud83d of a pairxxx"}', NULL, '"nothing"', 1272656772);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (2, 3, '{"role":"user","content":"😀 é\n\"quoted\" \\  xxxxxxx"}', NULL, '"same"', 2841327827);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (3, 0, '{"role":"assistant","content":"😀 é\n\"quoted\" \\  xxxxxxx","sampled":"nullxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}', X'03AA5A80E4D45DBB20B7C497E6695AB0', '"same"', 611407379);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (3, 1, '{"role":"system","content":"half \ud83d of a pairxxx"}', NULL, '"nothing"', 458813001);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (3, 2, '{"role":"user","content":"Helloxxxxxxxxxxxxxxxxxxxxx"}', NULL, '{"role":"user","content":"😀 é\n\"quoted\" \\  xxxxxxx"}', 213155826);
INSERT INTO messages (thread, place, message, tokens, seen, sum) VALUES (3, 3, '{"role":"system","content":"xxxxxxxxxx"}', NULL, '"nothing"', 533865293);
INSERT INTO edits (thread, fragments, searches, ids, sum) VALUES (1, '[{"id":"f00000","message":0,"span":{"start":0,"end":3},"state":{"kind":"open"}},{"id":"f00001","message":1,"span":{"start":1,"end":4},"state":{"kind":"folded"},"contract":"splice"},{"id":"f00002","message":2,"span":{"start":2,"end":5},"state":{"kind":"summarised","summary":"Hello","focus":"for Hello"}}]', '[{"id":"s00011","message":1,"span":{"start":0,"end":2}}]', 5, 3285566497);
INSERT INTO edits (thread, fragments, searches, ids, sum) VALUES (2, '[{"id":"f00000","message":0,"span":{"start":0,"end":3},"state":{"kind":"open"}},{"id":"f00001","message":1,"span":{"start":1,"end":4},"state":{"kind":"folded"},"contract":"splice"},{"id":"f00002","message":2,"span":{"start":2,"end":5},"state":{"kind":"summarised","summary":"null","focus":"for null"}}]', '[{"id":"s00012","message":1,"span":{"start":0,"end":2}}]', 6, 1796986324);
INSERT INTO edits (thread, fragments, searches, ids, sum) VALUES (3, '[{"id":"f00000","message":0,"span":{"start":0,"end":3},"state":{"kind":"open"}},{"id":"f00001","message":1,"span":{"start":1,"end":4},"state":{"kind":"folded"},"contract":"splice"},{"id":"f00002","message":2,"span":{"start":2,"end":5},"state":{"kind":"summarised","summary":"a\u0000b","focus":"for a\u0000b"}}]', '[{"id":"s00013","message":1,"span":{"start":0,"end":2}}]', 7, 982411757);
INSERT INTO entries (thread, place, entry, sum) VALUES (1, 0, '{"step":0,"kind":"answer","contract":"exact","fallback":null,"recomputeReason":"4 tokens: because","messages":[{"index":0,"role":"user","shown":100,"reused":90,"recomputed":4,"fresh":6,"approximate":0},{"index":1,"role":"user","shown":101,"reused":90,"recomputed":4,"fresh":7,"approximate":0}],"shown":205,"reused":180,"recomputed":8,"fresh":17,"approximate":0,"positions":205,"side":1,"submitted":26,"pending":1,"sources":{"own":180,"parked":0,"shared":0},"tiers":{"host":0,"disk":0},"parked":3,"evicted":0,"moved":0,"milliseconds":{"cache":0.25,"prefill":12.5,"decode":7.75},"predicted":null}', 852162387);
INSERT INTO entries (thread, place, entry, sum) VALUES (1, 1, '{"step":1,"kind":"answer","contract":"exact","fallback":"because \"so\"","recomputeReason":null,"messages":[{"index":0,"role":"user","shown":100,"reused":90,"recomputed":4,"fresh":6,"approximate":0},{"index":1,"role":"user","shown":101,"reused":90,"recomputed":4,"fresh":7,"approximate":0}],"shown":205,"reused":180,"recomputed":8,"fresh":17,"approximate":0,"positions":205,"side":1,"submitted":26,"pending":1,"sources":{"own":180,"parked":0,"shared":0},"tiers":{"host":0,"disk":0},"parked":3,"evicted":0,"moved":0,"milliseconds":{"cache":0.25,"prefill":12.5,"decode":7.75},"predicted":12.25}', 4178810183);
INSERT INTO entries (thread, place, entry, sum) VALUES (2, 0, '{"step":0,"kind":"answer","contract":"exact","fallback":null,"recomputeReason":"4 tokens: because","messages":[{"index":0,"role":"user","shown":100,"reused":90,"recomputed":4,"fresh":6,"approximate":0},{"index":1,"role":"user","shown":101,"reused":90,"recomputed":4,"fresh":7,"approximate":0}],"shown":205,"reused":180,"recomputed":8,"fresh":17,"approximate":0,"positions":205,"side":1,"submitted":26,"pending":1,"sources":{"own":180,"parked":0,"shared":0},"tiers":{"host":0,"disk":0},"parked":3,"evicted":0,"moved":0,"milliseconds":{"cache":0.25,"prefill":12.5,"decode":7.75},"predicted":null}', 3529467688);
INSERT INTO entries (thread, place, entry, sum) VALUES (2, 1, '{"step":1,"kind":"answer","contract":"exact","fallback":"because \"so\"","recomputeReason":null,"messages":[{"index":0,"role":"user","shown":100,"reused":90,"recomputed":4,"fresh":6,"approximate":0},{"index":1,"role":"user","shown":101,"reused":90,"recomputed":4,"fresh":7,"approximate":0}],"shown":205,"reused":180,"recomputed":8,"fresh":17,"approximate":0,"positions":205,"side":1,"submitted":26,"pending":1,"sources":{"own":180,"parked":0,"shared":0},"tiers":{"host":0,"disk":0},"parked":3,"evicted":0,"moved":0,"milliseconds":{"cache":0.25,"prefill":12.5,"decode":7.75},"predicted":12.25}', 3319219883);
INSERT INTO entries (thread, place, entry, sum) VALUES (3, 0, '{"step":0,"kind":"answer","contract":"exact","fallback":null,"recomputeReason":"4 tokens: because","messages":[{"index":0,"role":"user","shown":100,"reused":90,"recomputed":4,"fresh":6,"approximate":0},{"index":1,"role":"user","shown":101,"reused":90,"recomputed":4,"fresh":7,"approximate":0}],"shown":205,"reused":180,"recomputed":8,"fresh":17,"approximate":0,"positions":205,"side":1,"submitted":26,"pending":1,"sources":{"own":180,"parked":0,"shared":0},"tiers":{"host":0,"disk":0},"parked":3,"evicted":0,"moved":0,"milliseconds":{"cache":0.25,"prefill":12.5,"decode":7.75},"predicted":null}', 990057790);
INSERT INTO entries (thread, place, entry, sum) VALUES (3, 1, '{"step":1,"kind":"answer","contract":"exact","fallback":"because \"so\"","recomputeReason":null,"messages":[{"index":0,"role":"user","shown":100,"reused":90,"recomputed":4,"fresh":6,"approximate":0},{"index":1,"role":"user","shown":101,"reused":90,"recomputed":4,"fresh":7,"approximate":0}],"shown":205,"reused":180,"recomputed":8,"fresh":17,"approximate":0,"positions":205,"side":1,"submitted":26,"pending":1,"sources":{"own":180,"parked":0,"shared":0},"tiers":{"host":0,"disk":0},"parked":3,"evicted":0,"moved":0,"milliseconds":{"cache":0.25,"prefill":12.5,"decode":7.75},"predicted":12.25}', 1732512304);
INSERT INTO cards (thread, chain, card, sum) VALUES (1, X'02030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F2021', '{"title":"null","messages":3,"fragments":{"open":1,"folded":2,"summarised":0},"last":null}', 2278539043);
INSERT INTO cards (thread, chain, card, sum) VALUES (2, X'030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F202122232425262728292A2B2C2D2E2F303132', '{"title":"a\u0000b","messages":3,"fragments":{"open":1,"folded":3,"summarised":0},"last":{"shown":100,"reused":3}}', 24110658);
INSERT INTO cards (thread, chain, card, sum) VALUES (3, NULL, '{"title":"half \ud83d of a pair","messages":3,"fragments":{"open":1,"folded":4,"summarised":0},"last":null}', 861241539);
INSERT INTO events (thread, place, event, sum) VALUES (1, 0, '{"kind":"policy","at":1700000000001,"after":1,"folded":["f00001"],"saves":101,"reason":"Hello"}', 91002003);
INSERT INTO events (thread, place, event, sum) VALUES (1, 1, '{"kind":"policy","at":1700000000002,"after":2,"folded":["f00001"],"saves":102,"reason":"null"}', 837352025);
INSERT INTO events (thread, place, event, sum) VALUES (2, 0, '{"kind":"policy","at":1700000000002,"after":2,"folded":["f00001"],"saves":102,"reason":"null"}', 1884798752);
INSERT INTO events (thread, place, event, sum) VALUES (2, 1, '{"kind":"policy","at":1700000000003,"after":3,"folded":["f00001"],"saves":103,"reason":"a\u0000b"}', 2297170363);
INSERT INTO events (thread, place, event, sum) VALUES (3, 0, '{"kind":"policy","at":1700000000003,"after":3,"folded":["f00001"],"saves":103,"reason":"a\u0000b"}', 4111473586);
INSERT INTO events (thread, place, event, sum) VALUES (3, 1, '{"kind":"policy","at":1700000000004,"after":4,"folded":["f00001"],"saves":104,"reason":"half \ud83d of a pair"}', 880796984);
INSERT INTO digests (thread, digest, sum) VALUES (1, '{"tenant":"public","id":"thread_00000000000000000000000000000001","model":"builtin","created":1700000000001,"revision":2,"head":1422658607,"edits":3285566497,"card":2278539043,"messages":[4,1673207162],"entries":[2,743827610],"events":[2,2706616821]}', 583694242);
INSERT INTO digests (thread, digest, sum) VALUES (2, '{"tenant":"public","id":"thread_00000000000000000000000000000002","model":"builtin","created":1700000000002,"revision":2,"head":2831242709,"edits":1796986324,"card":24110658,"messages":[4,2898268537],"entries":[2,3293005931],"events":[2,1983520528]}', 1060168207);
INSERT INTO digests (thread, digest, sum) VALUES (3, '{"tenant":"public","id":"thread_00000000000000000000000000000003","model":"builtin","created":1700000000003,"revision":2,"head":73523640,"edits":982411757,"card":861241539,"messages":[4,1509507295],"entries":[2,714724859],"events":[2,76499128]}', 3531539070);
PRAGMA application_id=1802921572;
PRAGMA user_version=4;
