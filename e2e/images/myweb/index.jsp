<%@ page import="java.sql.*" contentType="text/html; charset=UTF-8" %>
<html><body><h2>Congratulations!!</h2><table border="1">
<tr><th>Name</th><th>Level(Score)</th></tr>
<%
  // The database is found by the variables that the kubelet injects for the Service `mysql`.
  String host = System.getenv("MYSQL_SERVICE_HOST");
  String port = System.getenv("MYSQL_SERVICE_PORT");
  String url = "jdbc:mariadb://" + host + ":" + port + "/HPE_APP?connectTimeout=3000";
  Class.forName("org.mariadb.jdbc.Driver");
  try (Connection connection = DriverManager.getConnection(url, "root", "123456");
       Statement statement = connection.createStatement();
       ResultSet rows = statement.executeQuery("SELECT USER_NAME, LEVEL FROM T_USERS ORDER BY ID")) {
    while (rows.next()) {
%><tr><td><%= rows.getString(1) %></td><td><%= rows.getString(2) %></td></tr>
<%
    }
  }
%></table><p>served by <%= java.net.InetAddress.getLocalHost().getHostName() %></p></body></html>
