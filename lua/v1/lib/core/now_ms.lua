-- Returns the server's clock in ms, or the number that a test passes. Two nodes' clocks are never compared:
-- a deadline is only ever read in the slot that wrote it.
local function now_ms(now)
  if now ~= "" then
    return tonumber(now)
  end
  local time = redis.call("TIME")
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
