-- A token as it is popped: "<id>#<k>.<g>", with "@<share>:<tenant>" behind it if the request names a tenant.
local TOKEN = "^([^#]+)#(%d+)%.(%d+)(@?[^@]*)$"

-- Returns the request, permit and generation of a token, or nil.
local function parse_token(token)
  local id, k, g, turn = string.match(token, TOKEN)
  if turn == "" or string.sub(turn or "", 1, 1) == "@" then
    return id, k, g
  end
end
