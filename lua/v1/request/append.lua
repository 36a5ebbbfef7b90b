-- append: adds the next chunk to an open request. Idempotent by the chunk's number: the reply to a repeat is `dup`.
-- `dup` is checked before `closed`, because the repeat of the last append may arrive after the seal. The chunks before
-- this one must be the caller's, because the id may have begun a new life since.
-- Says: ok tokens left_out? | dup tokens left_out? | forgotten | conflict | closed | cancelling summary | ended summary | gone
--   left_out = how many sub-requests of all chunks were left out, because their ids were there; only with ids
--   forgotten: nothing was added for so long that the ids are gone
-- @flags grows
-- @include lib/request_keys.lua
local ids = KEYS[11]  -- ids:{id}?  set  the ids of its sub-requests, if it takes each once
local now = ARGV[1]  -- ms, "" = server time
local chunk = tonumber(ARGV[2])  -- number of this chunk; enqueue brought chunk 1
local chain = ARGV[3]  -- hex digest over everything up to and with this chunk
local before = ARGV[4]  -- hex digest over everything before this chunk
local open_ms = tonumber(ARGV[5])  -- ms until the request may be taken for abandoned
local bodies = 6  -- ARGV[6...]  the sub-requests, and with a set of ids one text more: see lib/ids.lua
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/entries.lua
-- @include lib/ids.lua
-- @include lib/append.lua

if not chunk or not open_ms then
  return redis.error_reply("BADARGUMENT append wants numbers for chunk and open_ms")
end
local given = {list = ARGV, first = bodies, last = #ARGV}
local refused = ids and read_ids(given) or entry_error(given.first, given.last)
if refused then
  return refused
end
now = now_ms(now)
local state, over = load_unfinished()
if over then
  return over
end
local chunks, last = chain_of()
if chunk <= chunks then
  if chunk == chunks and chain ~= last then
    return {"conflict"}
  end
  return {"dup", queued_tokens(state, now), ids and left_out()}
end
if state.open == 0 then
  return {"closed"}
end
if chunk > chunks + 1 then
  return redis.error_reply("BADCHUNK chunk " .. chunk .. " came after chunk " .. chunks)
end
if before ~= last then
  return {"conflict"}
elseif state.state == "cancelling" then
  return {"cancelling", summary(state)}
end
local fields = {"chunks", chunk, "chain", chain, "open_until", now + open_ms}
if not ids then
  return {"ok", add_chunk(state, now, ARGV, bodies, unpack(fields))}
end
if state.total > 0 and redis.call("EXISTS", ids) == 0 then
  return {"forgotten"}
end
local wanted, new = new_ones(ids, given.own, ARGV, bodies)
fields[7], fields[8] = "left_out", left_out() + #given.own - #wanted
return {"ok", with_ids(ids, new, IDS_MS, add_chunk, state, now, wanted, 1, unpack(fields)), fields[8]}
