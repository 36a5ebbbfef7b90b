-- claim_dead: claims dead sub-requests of an ended request for the new request that is to run them.
-- The group `requeue` of the stream `dead` holds the claims: its consumers are new requests. The last call
-- makes the claims final: they stay until the new request has all of the sub-requests. Before that, another caller
-- may claim the same ones, because the first caller may have died.
-- Says: ok | taken | alive | gone
--   taken: in the last call, other requests have claimed some of them: no claim becomes final
-- @flags grows
-- @include lib/request_keys.lua
local id = ARGV[1]  -- the new request
local choice = ARGV[2]  -- hex; a hash of which dead ones are meant
local expected = tonumber(ARGV[3])  -- in the last call how many are claimed in all, else 0
local ids = 4  -- ARGV[4...]  dead entries, at most 1,000
-- @include lib/dead_letters.lua

if not string.match(choice, "^%x+$") or id == "" or not expected then
  return redis.error_reply("BADARGUMENT claim_dead wants an id, a hash of the choice and a count")
end
local refused = ids_error(ARGV, ids)
if refused then
  return refused
end
local state = redis.call("HGET", request, "state")
if not state or state == "abandoned" then
  return {"gone"}
end
if state ~= "done" and state ~= "cancelled" then
  return {"alive"}
end
if is_final(id) then  -- a repeat
  return {"ok"}
end
if redis.call("EXISTS", dead) == 0 then
  return {"taken"}
end
local made = redis.pcall("XGROUP", "CREATE", dead, CLAIMS, "0")
if made.err and not string.find(made.err, "BUSYGROUP", 1, true) then
  return made
end
local free = {}
for i = ids, #ARGV do
  local owner = owner_of(ARGV[i])
  if not owner or not is_final(owner) then
    free[#free + 1] = ARGV[i]
  end
end
if #free > 0 then
  free[#free + 1] = "FORCE"
  free[#free + 1] = "JUSTID"
  redis.call("XCLAIM", dead, CLAIMS, id, 0, unpack(free))
end
if expected > 0 then
  if claimed_by(id) ~= expected then
    return {"taken"}
  end
  redis.call("HSET", request, "requeued:" .. choice, id, FINAL .. id, expected)
end
return {"ok"}
