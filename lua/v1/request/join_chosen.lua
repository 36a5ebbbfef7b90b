-- join_chosen: hands results of children over to the open request that joins them, if each result of the parent chose its
-- own children. The parts of one result of the parent make one body, with as many parts as it chose, and with none if it
-- chose none. It moves the cursor over them in the same call. A part that is there twice replaces the first one until
-- the body is made.
-- Says: ok tokens chunks made | moved cursor tokens chunks | closed | cancelling summary | ended summary | gone
--   made = how many bodies were added
-- @flags grows
-- @include lib/request_keys.lua
local joins = KEYS[11]  -- flow:{id}  hash  place:index -> a part that waits; 0:index -> how many parts make the body
local handed = KEYS[12]  -- fed:{id}  string  a bit for each result of the parent whose body is made
local now = ARGV[1]  -- ms, "" = server time
local since = ARGV[2]  -- the cursor: the last entry of the parent and of each child that is here, with commas
local upto = ARGV[3]  -- the last entries that these parts are from
local open_ms = tonumber(ARGV[4])  -- ms until the request may be taken for abandoned
local width = tonumber(ARGV[5])  -- the most that one result may choose
local before = ARGV[6]  -- what is written before the first part of a body
local between = ARGV[7]  -- ... between two parts
local after = ARGV[8]  -- ... after the last one
local parts = 9  -- ARGV[9...]  place:index and part, in turn; places count from 1, and the part of place 0 is their number
-- @include lib/core.lua
-- @include lib/append.lua
-- @include lib/chosen.lua

local refused = feed_error(since, upto, open_ms) or chosen_parts_error(width, ARGV, parts)
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
local bodies, kept, indexes = put_chosen_together(ARGV, parts, {before, between, after})
prove_handed(indexes[1])
local tokens = add_chunk(state, now, bodies, 1, "chunks", chunks + 1, "handed", upto, "open_until", now + open_ms)
keep_parts(kept)
note_handed(indexes)
return {"ok", tokens, chunks + 1, #bodies}
