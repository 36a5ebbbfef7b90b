-- join: hands results of several other requests over to an open request that joins them, and moves the cursor over them in
-- the same call. The parts of one index make one body, which is added with the last of them; the others wait in `joins`.
-- A part that is there twice, because its sub-request ran again, replaces the first one until the body is made.
-- Says: ok tokens chunks made | moved cursor tokens chunks | closed | cancelling summary | ended summary | gone
--   made = how many bodies were added
-- @flags grows
-- @include lib/request_keys.lua
local joins = KEYS[11]  -- flow:{id}  hash  child:index -> a part that waits
local handed = KEYS[12]  -- fed:{id}  string  a bit for each index whose body is made
local now = ARGV[1]  -- ms, "" = server time
local since = ARGV[2]  -- the cursor: the last entry of each child that is here, with commas; 0-0 = there is none
local upto = ARGV[3]  -- the last entries that these parts are from
local open_ms = tonumber(ARGV[4])  -- ms until the request may be taken for abandoned
local width = tonumber(ARGV[5])  -- how many parts make one body
local before = ARGV[6]  -- what is written before the first part of a body
local between = ARGV[7]  -- ... between two parts
local after = ARGV[8]  -- ... after the last one
local parts = 9  -- ARGV[9...]  child:index and part, in turn
-- @include lib/core.lua
-- @include lib/append.lua
-- @include lib/flows.lua

local refused = feed_error(since, upto, open_ms) or parts_error(width, ARGV, parts)
if refused then
  return refused
end
now = now_ms(now)
local state, chunks = open_end(since, now)
if not state then
  return chunks
end
if not string.find(since, "[1-9]") then  -- this life has no part yet: those that are there are of a former one
  redis.call("UNLINK", joins, handed)
end
local bodies, kept, indexes = put_together(width, ARGV, parts, {before, between, after})
prove_handed(indexes[1])
local tokens = add_chunk(state, now, bodies, 1, "chunks", chunks + 1, "handed", upto, "open_until", now + open_ms)
keep_parts(kept)
note_handed(indexes)
return {"ok", tokens, chunks + 1, #bodies}
