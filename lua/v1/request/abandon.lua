-- abandon: gives up an intent that the auditor found without a request, or with an ended life. A new life may follow
-- that one if it was abandoned, or as soon as it is deleted. The mark makes the producer's late enqueue start over,
-- instead of creating a request that is not in `active`.
-- Says: ok | discarded | over ending | exists
--   discarded: its producer withdrew the request, or it was deleted, so nothing is lost; over: it has ended
--   ending = what distinguishes it from the other endings of the id, see lib/ids.lua: the request may have been reopened, and
--   ended again, since the auditor saw it
-- @flags allow-oom
-- @include lib/request_keys.lua
local seen = tonumber(ARGV[1])  -- the intent's score
local ttl = tonumber(ARGV[2])  -- ms the marker stays
-- @include lib/create.lua

if not seen or not ttl then
  return redis.error_reply("BADARGUMENT abandon wants numbers for seen and ttl")
end
local state = load_state()
if state and not is_ended(state) then
  return {"exists"}
end
local row = redis.call("HMGET", request, "abandoned", "discarded")
give_up(seen, ttl)
if state and not (state.state == "cancelled" and row[1]) then
  return {"over", ending_of(state)}
end
return {row[2] and "discarded" or "ok"}
