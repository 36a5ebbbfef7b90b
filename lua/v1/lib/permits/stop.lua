-- Stops the request: no further slice starts. Every queued permit is parked, and its token goes stale; held permits
-- end with their slice. `word` is the new state. After `cancelling`, finish counts the rest as cancelled, in one
-- number. After `expiring`, reap makes the rest dead. extend reports both to the holders. The third state is `paused`.
-- @include lib/core/state.lua
-- @include lib/permits/first_permit.lua
-- @include lib/permits/permits.lua
local function stop(state, word, reason)
  local all = all_permits(state)
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
