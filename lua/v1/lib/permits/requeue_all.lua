-- After a change of the priority or the shards, queues all queued permits again in their new lanes, due as before.
-- @include lib/core/state.lua
-- @include lib/permits/mint.lua
-- @include lib/permits/queue_permit.lua
local function change_lanes(state, now)
  mint(state, now)  -- its tokens are left out, because all that is queued is queued again
  local tokens, all = {}, all_permits(state)
  for i = 1, #all, 2 do
    local due = string.match(all[i + 1], "^q:%d+:%d+:%d+:(%d+)$")
    if due then
      queue_permit(state, all[i], now, tonumber(due), tokens)
    end
  end
  save_state(state)
  return tokens
end
