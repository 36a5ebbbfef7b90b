-- Nothing more of the request starts: every queued permit is parked (its token goes stale), held ones
-- end with their slice. `word` is the state until then: cancelling (finish counts the rest in one
-- number) or expiring (reap makes the rest dead), which extend tells the holders; or paused.
local function stop(state, word, reason)
  local all = redis.call("HGETALL", permits)
  for i = 1, #all, 2 do
    if string.sub(all[i + 1], 1, 2) == "q:" then
      unqueue(state, all[i])
      park(state, all[i])
    end
  end
  state.state = word
  redis.call("HSET", request, "reason", reason)
end
