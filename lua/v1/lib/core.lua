-- What scripts of every kind look at first: the clock, the layout of the keys.

-- ------------------------------------------------------------------ clock

-- Returns the server's clock in ms, or the number that a test passes. The clocks of two nodes are never compared:
-- only the slot in which a time was written reads it.
local function now_ms(now)
  if now ~= "" then
    return tonumber(now)
  end
  local time = redis.call("TIME")
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- ------------------------------------------------------------------ layout

-- The number of the key layout that these scripts use. A release with a newer layout writes its number to a queue's
-- `conf`, and older releases refuse that queue from then on.
local LAYOUT = 1

local function layout_error(found)
  if tonumber(found or LAYOUT) > LAYOUT then
    return redis.error_reply("BADLAYOUT this queue has key layout " .. found .. ", and this release of Fairlane works with up to "
      .. LAYOUT .. ": upgrade it (a newer release is at work here)")
  end
end
