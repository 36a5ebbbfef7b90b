-- abandon: gives up an intent that the auditor found without a request, or with an ended life. A new life may follow
-- that one if it was abandoned, or as soon as it is deleted. The mark makes the producer's late enqueue start over,
-- instead of creating a request that is not in `active`.
-- Says: ok | discarded | over born | exists
--   discarded: its producer withdrew the request, or it was deleted, so nothing is lost; over: it has ended
--   born = when the ended life began
-- @flags allow-oom
-- @include lib/request_keys.lua
local seen = tonumber(ARGV[1])  -- the intent's score
local ttl = tonumber(ARGV[2])  -- ms the marker stays
-- @include lib/create.lua

if not seen or not ttl then
  return redis.error_reply("BADARGUMENT abandon wants numbers for seen and ttl")
end
local row = redis.call("HMGET", request, "state", "abandoned", "discarded", "policy")
local state = row[1]
local is_over = state == "done" or state == "cancelled"
if state and state ~= "abandoned" and not is_over then
  return {"exists"}
end
give_up(seen, ttl)
if is_over and not (state == "cancelled" and row[2]) then
  return {"over", tonumber(string.match(row[4] or "", ":(%d+):[%d,]*$")) or 0}
end
return {row[3] and "discarded" or "ok"}
