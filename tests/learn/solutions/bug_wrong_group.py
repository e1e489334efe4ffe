def group_advantages(rewards, group):
    table = rewards.view(-1, group)
    return (table - table.mean(dim=1, keepdim=True)).flatten()
