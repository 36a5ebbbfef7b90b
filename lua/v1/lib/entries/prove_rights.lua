-- Runs, in a form that changes nothing, the commands that must follow when entries are added. So if Redis refuses one
-- of these commands, it does so before the first entry is added.
-- @include lib/permits/mint.lua
local function prove(state, now)
  redis.call("HSET", request, "state", state.state)
  redis.call("INCRBY", counter, 0)
  ready(state, now)
end
