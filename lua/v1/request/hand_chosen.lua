-- hand_chosen: adds what the results of another request choose for this open request, and moves the cursor over them in
-- the same call. A result that chooses nothing here is passed, too, so that no result can be missing without a sign.
-- Says: ok tokens chunks | moved cursor tokens chunks | closed | cancelling summary | ended summary | gone
-- @flags grows
-- @include lib/request_keys.lua
local joins = KEYS[11]  -- flow:{id}  hash  the origins of 256 sub-requests in each field
local handed = KEYS[12]  -- fed:{id}  string  for each result a bit if it was passed, and one for each of its choices that is here
local now = ARGV[1]  -- ms, "" = server time
local since = ARGV[2]  -- the cursor: the last entry of the other request that was passed; 0-0 = there is none
local upto = ARGV[3]  -- the last entry that these choices are from
local open_ms = tonumber(ARGV[4])  -- ms until the request may be taken for abandoned
local width = tonumber(ARGV[5])  -- the most that one result may choose
local is_joined = ARGV[6]  -- "1" = another request joins what becomes of them, and reads where each comes from
local choices = 7  -- ARGV[7...]  index:place and body, or the index of a result that was passed and "", in turn
-- @include lib/core.lua
-- @include lib/append.lua
-- @include lib/chosen.lua

local refused = feed_error(since, upto, open_ms) or choices_error(width, ARGV, choices)
if refused then
  return refused
end
now = now_ms(now)
local state, chunks = open_end(since, now)
if not state then
  return chunks
end
local before = redis.call("HGET", request, "passed")
if not before then  -- nothing was handed over in this life: what is there is of a former one
  redis.call("UNLINK", joins, handed)
end
local bodies, bits, passed = sort_out(width, ARGV, choices)
local rows = is_joined == "1" and origins_of(state.total, bits) or {}
prove_handed(bits[1] or passed[1])
local count = string.format("%.0f", tonumber(before or 0) + #passed)
local tokens =
  add_chunk(state, now, bodies, 1, "chunks", chunks + 1, "handed", upto, "open_until", now + open_ms, "passed", count)
for name, text in pairs(rows) do
  redis.call("HSET", joins, name, text)
end
redis.call("PEXPIRE", joins, PARTS_MS)
note_handed(bits)
note_handed(passed)
return {"ok", tokens, chunks + 1}
