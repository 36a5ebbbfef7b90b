-- append_staged: moves one staged chunk of a pinned transaction into the open request, as append would add it.
-- Idempotent by the chunk's position among all chunks of the manifest: a caller at another position gets the next one.
-- The call with the last chunk may also seal the request.
-- Says: ok tokens position | at tokens position state | unpinned | missing | closed | ended summary | gone
-- @flags grows
-- @include lib/request_keys.lua
local record = KEYS[11]  -- txn:{id}:<txn>  hash  manifest, position, rolled, state
local staged = KEYS[12]  -- stage:{id}:<txn>:<area>  hash  chunk -> packed sub-requests
local now = ARGV[1]  -- ms, "" = server time
local position = tonumber(ARGV[2])  -- how many chunks of the manifest come before this one
local chunk = tonumber(ARGV[3])  -- its number in its area
local link = ARGV[4]  -- text that identifies the chunk, for the chain of digests
local last = ARGV[5]  -- "" | area: the last one of its area | seal: the last one of all, and the request is sealed
local open_ms = tonumber(ARGV[6])  -- ms until the request may be taken for abandoned
local ttl = tonumber(ARGV[7])  -- ms that the record stays
local keep = ARGV[8]  -- "1": results show the bodies, too
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/append.lua

if not position or not chunk or not open_ms or not ttl or ttl < 1 then
  return redis.error_reply("BADARGUMENT append_staged wants numbers for position, chunk, open_ms and ttl")
end
if last ~= "" and last ~= "area" and last ~= "seal" then
  return redis.error_reply("BADARGUMENT append_staged wants area, seal or nothing for last")
end
local found = redis.call("HMGET", record, "position", "state")
if not found[1] then
  return {"unpinned"}
end
now = now_ms(now)
local state, over = load_unfinished()
if tonumber(found[1]) ~= position then
  return {"at", state and queued_tokens(state, now) or {}, tonumber(found[1]), found[2]}
elseif over then
  return over
elseif state.open == 0 then
  return {"closed"}
end
local packed = redis.call("HGET", staged, chunk)
if not packed then
  return {"missing"}
end
local bodies, own = unpacked(packed)
if not bodies then
  return bad_packing()
end
redis.call("PEXPIRE", record, ttl)
redis.call("HINCRBY", record, "rolled", 0)
keep_rows(state, own, bodies, keep)
local is_last = last == "seal"
local count = grow(state, now, open_ms, bodies, is_last)
local chunks, chain = chain_of()
redis.call("HSET", request, "chunks", chunks + 1, "chain", redis.sha1hex(chain .. "|" .. link))
redis.call("HSET", record, "position", position + 1, "state", is_last and "sealed" or "pinned")
redis.call("HINCRBY", record, "rolled", count)
local tokens = grown(state, now, is_last)
if last ~= "" then
  redis.call("UNLINK", staged)
end
return {"ok", tokens, position + 1}
