-- Cancels: every queued permit is parked (its token goes stale), held ones are told by extend and
-- end with their slice. finish counts the rest in one number.
local function stop(state, reason)
  local all = redis.call("HGETALL", permits)
  for i = 1, #all, 2 do
    if string.sub(all[i + 1], 1, 2) == "q:" then
      unqueue(state, all[i])
      park(state, all[i])
    end
  end
  state.state = "cancelling"
  state.reason = reason
  redis.call("HSET", request, "reason", reason)
end
