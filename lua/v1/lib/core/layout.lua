-- The layout of the keys that this folder's scripts use, as a queue's `conf` names it. A release with a newer
-- layout writes its number there, and older releases refuse from then on.
local LAYOUT = 1

local function layout_error(found)
  if tonumber(found or LAYOUT) > LAYOUT then
    return redis.error_reply("BADLAYOUT this queue has key layout " .. found .. ", and this release of Fairlane works with up to "
      .. LAYOUT .. ": upgrade it (a newer release is at work here)")
  end
end
