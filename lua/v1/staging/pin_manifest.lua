-- pin_manifest: fixes which staging areas a transaction adds to its open request: the first manifest stays. A caller
-- that runs the transaction again gets the pinned manifest and how much of it was added.
-- An empty manifest is not kept. Every call gives the open request more time.
-- Says: pinned manifest position rolled state | closed | ended summary | gone
-- @flags grows
-- @include lib/request_keys.lua
local record = KEYS[11]  -- txn:{id}:<txn>  hash  manifest, position, rolled, state: pinned or sealed
local now = ARGV[1]  -- ms, "" = server time
local manifest = ARGV[2]  -- a line for each area: its name, chunks, rows, checksum
local open_ms = tonumber(ARGV[3])  -- ms until the request may be taken for abandoned
local ttl = tonumber(ARGV[4])  -- ms that the record stays
-- @include lib/core.lua
-- @include lib/state.lua

if not open_ms or not ttl or ttl < 1 then
  return redis.error_reply("BADARGUMENT pin_manifest wants numbers for open_ms and ttl")
end
local state, over = load_unfinished()
local found = redis.call("HMGET", record, "manifest", "position", "rolled", "state")
if not found[1] then
  if over then
    return over
  elseif state.open == 0 then
    return {"closed"}
  end
  found = {manifest, "0", "0", "pinned"}
  if manifest ~= "" then
    redis.call("HSET", record, "manifest", manifest, "position", 0, "rolled", 0, "state", "pinned")
  end
end
redis.call("PEXPIRE", record, ttl)
if state and state.open == 1 then
  redis.call("HSET", request, "open_until", now_ms(now) + open_ms)
end
return {"pinned", unpack(found)}
