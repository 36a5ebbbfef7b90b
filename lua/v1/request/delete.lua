-- delete: removes an ended request with its results and dead sub-requests. A small marker stays for `ttl`: it refuses
-- late copies of the producer's calls, and lets a new life of the id begin later than this one.
-- Says: ok | other | alive | gone
--   other: the id has another life; alive: it runs, or it was reopened and has ended again
-- @flags allow-oom
-- @include lib/request_keys.lua
local rows = KEYS[11]  -- ids:{id}  ids of rows that were added by id
local owner = KEYS[12]  -- txn:{id}  the only transaction that may write to the request
local of_flow = KEYS[13]  -- flow:{id}  what waits to be joined
local handed = KEYS[14]  -- fed:{id}  what it has of the requests that feed it
local ending = ARGV[1]  -- of the life that is meant, see lib/ids.lua; it must be in the log
local seen = tonumber(ARGV[2])  -- intents up to this score are given up
local ttl = tonumber(ARGV[3])  -- ms the marker stays
-- @include lib/state.lua
-- @include lib/create.lua

local born = tonumber(string.match(ending, "^%d+"))  -- ms; when that life began
if not born or not seen or not ttl or ttl < 1 then
  return redis.error_reply("BADARGUMENT delete wants an ending, and numbers for seen and ttl")
end
local state = load_state()
if not state then
  return {"gone"}
elseif state.born ~= born then
  return {"other"}
elseif not is_ended(state) or ending_of(state) ~= ending then  -- or it was reopened since its end
  return {"alive"}
end
local before = tonumber(redis.call("HGET", request, "seen") or -1)
redis.call("UNLINK", stream, counter, request, permits, leases, retries, results, dead, few, errors, rows, owner, of_flow, handed)
give_up(math.max(seen, before), ttl)
redis.call("HSET", request, "discarded", 1, "over", string.format("%d", born))
if state.state == "cancelled" or state.dead > 0 then  -- requests that start after it must still see that it failed
  local was = state.state == "cancelled" and state.state or string.format("%d of %d dead", state.dead, state.total)
  redis.call("HSET", request, "was", was)
end
return {"ok"}
