-- Takes from all buckets of a request, where one server has all keys.
-- @include lib/rates/bucket.lua
local OWN = "="  -- the bucket of the request that is selected
local BUCKET = " (%S+) (%d+) (%d+) (%d+)"

local function each_rate(rates)
  local found = {}
  for name, interval, burst, weight in string.gmatch(rates, BUCKET) do
    local key = name == OWN and "rate" .. string.sub(request, 4) or "rate:{" .. name .. "}"
    found[#found + 1] = {key = key, interval = tonumber(interval), burst = tonumber(burst), weight = tonumber(weight)}
  end
  return found
end

local function refund_all(now, rates, count)
  for _, rate in ipairs(each_rate(rates)) do
    refund(rate.key, now, rate, count)
  end
end

-- Returns how many sub-requests all buckets allow, up to `want`, and else the ms until the caller may ask again.
local function take_all(now, rates, want, has_waited)
  local got, allowed = {}, want
  for i, rate in ipairs(each_rate(rates)) do
    local wait
    got[i], wait = take(rate.key, now, rate, allowed, has_waited)
    allowed = math.min(allowed, got[i])
    if allowed == 0 then
      for j, other in ipairs(each_rate(rates)) do
        if j < i then
          refund(other.key, now, other, got[j])
        end
      end
      return 0, wait
    end
  end
  for i, rate in ipairs(each_rate(rates)) do
    if got[i] > allowed then
      refund(rate.key, now, rate, got[i] - allowed)
    end
  end
  return allowed, 0
end
