-- discard: deletes an open request that its producer cannot complete. The request must be the life that this producer
-- wrote, with nothing but its chunks, because another producer of the id may be ahead or have begun a new life. The
-- request was never complete, so it is not logged; a marker keeps the auditor from logging it as lost. If a worker holds
-- a slice, the request is cancelled instead, and ends with the last slice.
-- Says: ok queued | held queued | kept | ended summary | gone
--   queued = the tokens that were on their way, as mint returns them, and what leaves its keys; kept: the request is not such a life
-- @flags allow-oom
-- @include lib/request_keys.lua
local ids = KEYS[11]  -- ids:{id}?  set  the ids of its sub-requests, if it takes each once
local now = ARGV[1]  -- ms, "" = server time
local born = tonumber(ARGV[2])  -- ms; when the life of this producer began
local chain = ARGV[3]  -- hex digest over all chunks that it sent
local before = ARGV[4]  -- the same without the last chunk, which may not have arrived
local reason = ARGV[5]  -- words for people
local seen = tonumber(ARGV[6])  -- intents up to this score are given up, because the entry in `active` is dropped
local ttl = tonumber(ARGV[7])  -- ms the marker stays
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/create.lua

if not born or not seen or not ttl then
  return redis.error_reply("BADARGUMENT discard wants numbers for born, seen and ttl")
end

local function with_given(state, tokens)
  for _, part in ipairs(state.given or {}) do
    tokens[#tokens + 1] = part
  end
  return tokens
end

local state, over = load_unfinished()
if over then
  if over[1] == "gone" then
    give_up(seen, ttl)
  end
  return over
end
local _, last = chain_of()
if state.born ~= born or state.open == 0 or (last ~= chain and last ~= before) then
  return {"kept"}
end
local tokens = all_queued(state, now_ms(now), 0)
if state.held == 0 then
  if state.gate.keys ~= "" then
    leave_all_keys(state, all_permits(state))
  end
  redis.call("UNLINK", stream, counter, request, permits, leases, retries, results, dead, few, errors)
  if ids then
    redis.call("UNLINK", ids)
  end
  give_up(seen, ttl)
  -- Requests that start after it must see that it was never complete.
  redis.call("HSET", request, "discarded", 1, "over", string.format("%d", born), "was", "withdrawn")
  return {"ok", with_given(state, tokens)}
end
if state.state ~= "cancelling" then
  abandon(state, reason)
  save_state(state)
end
return {"held", with_given(state, tokens)}
