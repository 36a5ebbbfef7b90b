-- Nothing more of the request starts: every queued permit is parked (its token goes stale), held ones
-- end with their slice. `word` is the state until then: cancelling (finish counts the rest in one
-- number) or expiring (reap makes the rest dead), which extend reports to the holders; or paused.
-- @include lib/core/state.lua
-- @include lib/permits/permits.lua
local function stop(state, word, reason)
  local all = redis.call("HGETALL", permits)
  for i = 1, #all, 2 do
    if string.sub(all[i + 1], 1, 2) == "q:" then
      unqueue(state, all[i])
      park(state, all[i])
    end
  end
  state.state, state.is_stopped = word, true
  save_state(state, "reason", reason)
end

-- Cancels a request that was never complete, because its producer died or gave it up. After its end the same id may
-- be submitted again, see enqueue.
local function abandon(state, reason)
  stop(state, "cancelling", reason)
  redis.call("HSET", request, "abandoned", 1)
end
