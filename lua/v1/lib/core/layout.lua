-- The number of the key layout that these scripts use. A release with a newer layout writes its number to a queue's
-- `conf`, and older releases refuse that queue from then on.
local LAYOUT = 1

local function layout_error(found)
  if tonumber(found or LAYOUT) > LAYOUT then
    return redis.error_reply("BADLAYOUT this queue has key layout " .. found .. ", and this release of Fairlane works with up to "
      .. LAYOUT .. ": upgrade it (a newer release is at work here)")
  end
end
