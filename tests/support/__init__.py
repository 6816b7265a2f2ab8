"""What tests share: Redis and databases, instances as processes (`cluster`, `speech`, `chat`) or in this process
(`in_process`), raw clients and nodes, commands, engines, and waiting for facts."""
