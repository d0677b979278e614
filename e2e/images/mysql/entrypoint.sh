#!/bin/sh
# A database that listens on every address; MYSQL_ROOT_PASSWORD is root's password from any host.
set -e
: "${MYSQL_ROOT_PASSWORD:?must be set}"
if [ ! -d /var/lib/mysql/mysql ]; then
  mariadb-install-db --user=mysql --auth-root-authentication-method=normal --skip-test-db >/dev/null
  cat >/tmp/first.sql <<SQL
CREATE USER IF NOT EXISTS 'root'@'%' IDENTIFIED BY '$MYSQL_ROOT_PASSWORD';
GRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;
CREATE DATABASE IF NOT EXISTS HPE_APP;
USE HPE_APP;
CREATE TABLE IF NOT EXISTS T_USERS (ID INT AUTO_INCREMENT PRIMARY KEY, USER_NAME VARCHAR(64), LEVEL VARCHAR(20));
INSERT INTO T_USERS (USER_NAME, LEVEL) VALUES ('me', '100'), ('our team', '100'), ('HPE', '100');
SQL
  set -- --init-file=/tmp/first.sql
fi
install -d -o mysql -g mysql /run/mysqld
exec mariadbd --user=mysql --bind-address=0.0.0.0 --skip-name-resolve --innodb-buffer-pool-size=16M \
  --performance-schema=OFF --log-error=/dev/stderr "$@"
