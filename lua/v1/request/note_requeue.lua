-- note_requeue: notes with an ended request which one runs its dead again, for a repeat of the same choice
-- that finds some of them dropped. The last note counts. Creates no key. Says: ok | alive | gone
-- @flags allow-oom
-- @include lib/request_keys.lua
local choice = ARGV[1]  -- hex; a hash of which dead ones are meant
local id = ARGV[2]  -- the request that runs them

if not string.match(choice, "^%x+$") or id == "" then
  return redis.error_reply("BADARGUMENT note_requeue wants a hash of the choice and the id of a request")
end
local state = redis.call("HGET", request, "state")
if not state or state == "abandoned" then
  return {"gone"}
end
if state ~= "done" and state ~= "cancelled" then
  return {"alive"}
end
redis.call("HSET", request, "requeued:" .. choice, id)
return {"ok"}
