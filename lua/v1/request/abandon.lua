-- abandon: gives up an intent that the auditor found without a request, or with an abandoned life that a new one may
-- follow. Its mark makes the producer's late enqueue start over, instead of creating a request that is not in `active`.
-- Says: ok | discarded | over | exists
--   discarded: its producer withdrew the request, so nothing is lost; over: it has ended, and no other life may follow
-- @flags allow-oom
-- @include lib/core/request_keys.lua
local seen = tonumber(ARGV[1])  -- the intent's score
local ttl = tonumber(ARGV[2])  -- ms the marker stays
-- @include lib/create/give_up_intents.lua

if not seen or not ttl then
  return redis.error_reply("BADARGUMENT abandon wants numbers for seen and ttl")
end
local row = redis.call("HMGET", request, "state", "abandoned", "discarded")
local state, may_follow = row[1], row[1] == "cancelled" and row[2]
if state and state ~= "abandoned" and not may_follow then
  return {(state == "done" or state == "cancelled") and "over" or "exists"}
end
give_up(seen, ttl)
return {row[3] and "discarded" or "ok"}
