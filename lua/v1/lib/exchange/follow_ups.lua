-- What the replies of many requests ask to dispatch, where one server has all keys.
-- @include lib/dispatch/log_endings.lua
-- @include lib/dispatch/turns.lua
local MOST_TOKENS = 1000

-- `keep`: as log_ending takes it.
local function new_follow_ups(keep)
  return {keep = keep, by_lane = {}, ended = {}, left = {}, unlogged = {}}
end

-- Adds the tokens that mint returned for a request.
local function add_tokens(follow_ups, id, minted)
  for i = 1, #minted, 3 do
    local lane, permit, delay = minted[i], minted[i + 1], minted[i + 2]
    if delay > 0 or not KEYS[lanes + lane] then
      local left = follow_ups.left
      left[#left + 1], left[#left + 2], left[#left + 3], left[#left + 4] = id, lane, permit, delay
    else
      local list = follow_ups.by_lane[lane] or {}
      follow_ups.by_lane[lane] = list
      list[#list + 1] = place_token(lane, id .. "#" .. permit)
    end
  end
end

local function add_ending(follow_ups, now, id, summary)
  local is_new, refused = log_ending(now, id, summary, follow_ups.keep)
  if is_new then
    follow_ups.ended[#follow_ups.ended + 1] = id
  elseif refused then
    local unlogged = follow_ups.unlogged
    unlogged[#unlogged + 1], unlogged[#unlogged + 2] = id, summary
  end
end

-- Dispatches what was added since the last call.
local function dispatch_now(follow_ups, now)
  for lane, list in pairs(follow_ups.by_lane) do
    for i = 1, #list, MOST_TOKENS do
      redis.call("LPUSH", KEYS[lanes + lane], unpack(list, i, math.min(i + MOST_TOKENS - 1, #list)))
    end
  end
  if #follow_ups.ended > 0 then
    drop_logged(now, follow_ups.ended)
  end
  follow_ups.by_lane, follow_ups.ended = {}, {}
end
