"""docker-compose.yml and conf/kubernetes/Dockerfile in containers that run: ``make compose``."""
