-- Returns the server's clock in ms, or the number that a test passes. The clocks of two nodes are never compared:
-- only the slot in which a time was written reads it.
local function now_ms(now)
  if now ~= "" then
    return tonumber(now)
  end
  local time = redis.call("TIME")
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
