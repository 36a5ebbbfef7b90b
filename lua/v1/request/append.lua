-- append: adds the next chunk to an open request. Idempotent by the chunk's number: the reply to a repeat is `dup`.
-- `dup` is checked before `closed`, because the repeat of the last append may arrive after the seal. The chunks before
-- this one must be the caller's, because the id may have begun a new life since.
-- Says: ok tokens | dup tokens | conflict | closed | cancelling summary | ended summary | gone
-- @flags grows
-- @include lib/core/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local chunk = tonumber(ARGV[2])  -- number of this chunk; enqueue brought chunk 1
local chain = ARGV[3]  -- hex digest over everything up to and with this chunk
local before = ARGV[4]  -- hex digest over everything before this chunk
local open_ms = tonumber(ARGV[5])  -- ms until the request may be taken for abandoned
local bodies = 6  -- ARGV[6...]  the sub-requests
-- @include lib/core/now_ms.lua
-- @include lib/core/state.lua
-- @include lib/core/digest_chain.lua
-- @include lib/permits/permits.lua
-- @include lib/permits/mint.lua
-- @include lib/core/finish.lua
-- @include lib/create/add_chunk.lua

if not chunk or not open_ms then
  return redis.error_reply("BADARGUMENT append wants numbers for chunk and open_ms")
end
local refused = entry_error(bodies, #ARGV)
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
  return {"dup", queued_tokens(state, now)}
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
return {"ok", add_chunk(state, now, ARGV, bodies, "chunks", chunk, "chain", chain, "open_until", now + open_ms)}
